"""`ripe sim`: recordings that no camera made."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ripe_mambaspike.cli.calibrate import CalibrateCommand
from ripe_mambaspike.cli.data.sets import (
    count_workers,
    print_current_store,
    print_notes,
    progress_bar,
    show_store,
    store_document,
    store_root,
)
from ripe_mambaspike.cli.output import print_json

Count = Annotated[int | None, tyro.conf.arg(metavar="N")]


@dataclass
class MakeCommand:
    """Simulate a set into a store, ready for training. A run that was killed goes on where it was."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SET")]
    """synthgesture, sim-nmnist, sim-cifar10 or sim-caltech101."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """The folder to put it in; the set's root from then on."""
    images: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """The pictures to show: MNIST's IDX files, or class/picture in a folder or a zip; synthgesture needs none."""
    train: Count = None
    """Training clips to make; all when not given."""
    val: Count = None
    """Validation clips."""
    test: Count = None
    """Test clips."""
    size: Count = None
    """The sensor's side in pixels; the original's when not given."""
    seconds: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """How long a gesture is watched; 1.5 when not given. The other sets last as long as the camera's movement."""
    variation: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """How much recordings differ, times what was seen in real ones; 0 for not at all."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Another seed gives other recordings."""
    calibration: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A calibrated camera, of ripe sim calibrate; the one that ships when not given."""
    workers: Count = None
    """Processes; as many as there are cores when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.data.simulated import simulate_dataset
        from ripe_mambaspike.data.store import current_key

        before = current_key(store_root(self.out, None) / self.name)
        with progress_bar(self.name) as report:
            made = simulate_dataset(
                self.name,
                self.out,
                images=self.images,
                train=self.train,
                val=self.val,
                test=self.test,
                size=self.size,
                seconds=self.seconds,
                variation=self.variation,
                seed=self.seed,
                calibration=self.calibration,
                workers=count_workers(self.workers),
                progress=report,
            )
        print_notes(made)
        print_current_store(before, made)
        document = {**store_document(made), "simulated": True, "recipe": made.index["recipe"]}
        print_json(document) if self.json else show_store(document)
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
