"""`ripe sim`: simulated recordings."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ripe_mambaspike.cli.calibrate_camera import CalibrateCameraCommand, CalibrateGesturesCommand
from ripe_mambaspike.cli.data.sets import print_notes, show_store
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Count, Float, Json, Number, Settings, option


@dataclass
class MakeCommand:
    """Simulate a dataset into a store, ready for training. An interrupted run continues where it stopped."""

    name: Annotated[str, tyro.conf.Positional, option("SET")]
    """gestures-hard, sim-caltech101, sim-cifar10 (each also with -small), sim-dvsgesture, sim-nmnist or synthgesture;
    or gestures-hard-unseen or sim-dvsgesture-unseen: motions that the set of that name never shows."""
    out: Annotated[Path, option("DIR")]
    """The folder to put it in, which is then the dataset's root."""
    images: Annotated[Path | None, option("PATH")] = None
    """The pictures to show: MNIST's IDX files, CIFAR-10's binary batches, or CLASS/PICTURE in a folder or a zip.
    Gestures need none."""
    set: Settings = field(default_factory=list)
    """Difficulty, such as noise_hz=2: pictures, recordings, contrast, noise_hz, shift, mirror for pictures; people,
    speed, distance, angle, clutter, shake, noise_hz for gestures-hard; people, texture, sway, distance, angle, speed,
    background for sim-dvsgesture. docs/simulator.md says what they mean."""
    train: Count = None
    """Number of training clips. Default: the set's own."""
    val: Count = None
    """Number of validation clips. Default: the set's own."""
    test: Count = None
    """Number of test clips. Default: the set's own."""
    size: Count = None
    """Side of the sensor in pixels. Default: the set's own."""
    seconds: Float = None
    """Duration of a gesture. Default: the set's own. Clips of pictures last as long as the camera moves."""
    variation: Annotated[float, option("X")] = 1.0
    """How much recordings vary, relative to real ones; 0 for no variation."""
    seed: Number = 0
    """Another seed gives other recordings."""
    calibration: Annotated[Path | None, option("FILE")] = None
    """A camera fitted by ripe sim calibrate, or for sim-dvsgesture by ripe sim calibrate-gestures. Default: the one
    that ships."""
    workers: Count = None
    """Number of processes. Default: one for each core."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import simulate_dataset
        from ripe_mambaspike.data.datasets import count_workers, store_folder
        from ripe_mambaspike.data.known_stores import check_known
        from ripe_mambaspike.data.sets.preparations import read_settings
        from ripe_mambaspike.data.store import current_key

        before = current_key(store_folder(self.out) / self.name)
        with progress_bar(self.name) as update:
            made = simulate_dataset(
                self.name, self.out, images=self.images, train=self.train, val=self.val, test=self.test, size=self.size,
                seconds=self.seconds, variation=self.variation, seed=self.seed, difficulty=read_settings(self.set),
                calibration=self.calibration, workers=count_workers(self.workers), progress=update,
            )  # fmt: skip
        print_notes(before, made)
        known = check_known(made)
        show_store(made, self.json, simulated=True, recipe=made.index.recipe, checksum_ships=known)
        if known and not self.json:
            print("the content has the checksum that ships")
        return 0


SIM_COMMANDS = {
    "make": MakeCommand,
    "calibrate": CalibrateCameraCommand,
    "calibrate-gestures": CalibrateGesturesCommand,
}
