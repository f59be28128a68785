"""The network of `ripe predict`, `ripe stream` and `ripe serve`, and how recordings are binned for it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ripe_mambaspike.cli.output import print_message
from ripe_mambaspike.command_options import Checkpoint, Count, CropArea, SensorSize

if TYPE_CHECKING:
    from ripe_mambaspike.inference.classifier import Classifier


@dataclass(kw_only=True)
class NetworkOptions:
    checkpoint: Checkpoint
    """The folder of a run (its best network is taken) or of a saved network, or the name of a shipped one, such as
    gestures-simulated; ripe predict also takes an export."""
    sensor_size: SensorSize = None
    """Width and height of the sensor, whatever the recording says. Default: the sensor of training; a recording of
    another sensor is refused."""
    crop: CropArea = None
    """The part of the sensor that is binned: left, top, width and height. Default: as in training."""
    grid: Count = None
    """Side of the square grid of a bin. Default: as in training."""

    def load(self, **more: Any) -> "Classifier":
        from ripe_mambaspike import load

        return load(self.checkpoint, grid=self.grid, sensor_size=self.sensor_size, crop=self.crop, **more)


def warn_default_window(classifier: "Classifier") -> None:
    """Warn that the window is a default, if the network does not store the duration of its training clips."""
    if classifier.duration_us is None:
        print_message(
            "warning: --window: using 1500 ms, as the network does not store the duration of its training clips"
        )
