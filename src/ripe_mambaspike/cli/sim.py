"""`ripe sim`: simulated recordings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ripe_mambaspike.cli.calibrate import CalibrateCommand
from ripe_mambaspike.cli.data.sets import print_notes, show_store
from ripe_mambaspike.cli.progress import progress_bar

Count = Annotated[int | None, tyro.conf.arg(metavar="N")]


@dataclass
class MakeCommand:
    """Simulate a dataset into a store, ready for training. An interrupted run continues where it stopped."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SET")]
    """synthgesture, sim-nmnist, sim-cifar10 or sim-caltech101."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """The folder to put it in, which is then the dataset's root."""
    images: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """The pictures to show: MNIST's IDX files, or CLASS/PICTURE in a folder or a zip. synthgesture needs none."""
    train: Count = None
    """Number of training clips. Default: all."""
    val: Count = None
    """Number of validation clips. Default: all."""
    test: Count = None
    """Number of test clips. Default: all."""
    size: Count = None
    """Side of the sensor in pixels. Default: that of the original dataset."""
    seconds: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Duration of a gesture. Default: 1.5. Clips of the other datasets last as long as the camera's movement."""
    variation: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """How much recordings vary, relative to real ones; 0 for no variation."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Another seed gives other recordings."""
    calibration: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A camera fitted by ripe sim calibrate. Default: the one that ships."""
    workers: Count = None
    """Number of processes. Default: one for each core."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike import simulate_dataset
        from ripe_mambaspike.data.datasets import count_workers, store_folder
        from ripe_mambaspike.data.store import current_key

        before = current_key(store_folder(self.out) / self.name)
        with progress_bar(self.name) as update:
            made = simulate_dataset(
                self.name, self.out, images=self.images, train=self.train, val=self.val, test=self.test, size=self.size,
                seconds=self.seconds, variation=self.variation, seed=self.seed, calibration=self.calibration,
                workers=count_workers(self.workers), progress=update,
            )  # fmt: skip
        print_notes(before, made)
        show_store(made, self.json, simulated=True, recipe=made.index.recipe)
        return 0


@dataclass
class SimCommand:
    """Simulate recordings, and fit the simulated camera to real ones."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[MakeCommand, tyro.conf.subcommand("make")]
        | Annotated[CalibrateCommand, tyro.conf.subcommand("calibrate")]
    ]

    def run(self) -> int:
        return self.command.run()
