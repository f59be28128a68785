"""A trained network together with its class names and its binning: all that a recording needs to be classified.

classifier = load("runs/mine")                       # a run, a saved network or an export
prediction = predict(classifier, "gesture.aedat4")   # see predict.py
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from ripe_mambaspike.errors import InputError, RipeError, WeightsError
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.reading import open_with_default_size, read
from ripe_mambaspike.events.recording import Recording, RecordingWarning
from ripe_mambaspike.events.region import Crop, SensorRegion, Size, check_crop, format_size
from ripe_mambaspike.events.source import ReadOptions
from ripe_mambaspike.models.labels import LABELS_FILE, Labels, UnknownRule, find_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from ripe_mambaspike.models.base import Model

MIN_SIDE, MAX_SIDE = 8, 65536  # of the grid, which the network downsamples three times
MAX_TIME_STEPS = 4096  # of one clip, for a causal network, which has no limit of its own
MIN_POLARITY_EVENTS = 100  # recordings with at least this many events must have both polarities
MAX_DURATION_RATIO = 2  # of a recording and the training clips; beyond it there is a warning


@dataclass(frozen=True)
class Classifier:
    """A network, the names of its classes and the binning that it was trained on.

    Args:
        model: the network
        class_names: one for each output
        time_steps: T, time bins of a recording
        grid: (height, width) of the bins
        bin_by: "time" for bins of equal duration, "count" for equal numbers of events
        binary: whether a bin holds 1 for any number of events instead of their count
        grid_given: whether the caller chose the grid, whatever the sensor
        sensor_size: (width, height) before the crop; None if not known
        crop: (x, y, width, height), the part of the sensor that is binned; None for all of it
        duration_us: median of the training clips' durations
        sensor_given: whether the caller chose the sensor's size, whatever the recording says
        crop_given: whether the caller chose the crop
        unknown: when a recording is of none of the classes; None: never
    """

    model: "Model"
    class_names: tuple[str, ...]
    time_steps: int
    grid: tuple[int, int]  # (height, width)
    bin_by: Literal["time", "count"]
    binary: bool
    grid_given: bool = False  # the caller chose the grid, whatever the sensor
    sensor_size: Size | None = None  # (width, height) before the crop; None: not known
    crop: Crop | None = None  # (x, y, width, height) of the sensor that is binned; None: all of it
    duration_us: int | None = None  # the median of the training clips' durations
    sensor_given: bool = False  # the caller chose the sensor's size, whatever the recording says
    crop_given: bool = False
    unknown: UnknownRule | None = None  # when a recording is of none of the classes; None: never

    @property
    def region(self) -> SensorRegion:
        """The part of the sensor that is binned."""
        return SensorRegion(self.sensor_size, self.crop, self.sensor_given, self.crop_given)

    @property
    def device(self) -> "torch.device":
        """Where the network computes."""
        import torch

        weight = next(iter(self.model.parameters()), None) if hasattr(self.model, "parameters") else None
        return torch.device("cpu") if weight is None else weight.device

    @cached_property
    def compute_logits(self) -> "Callable[[Tensor], Tensor]":
        """Clips [B, T, 2, H, W] on any device → per-step logits; on a GPU one captured graph for each shape."""
        from ripe_mambaspike.inference.capture import CapturedShapes

        model, device = self.model, self.device
        run = CapturedShapes(model) if device.type == "cuda" else model
        return lambda clips: run(clips.to(device, model.dtype))

    def describe_binning(self) -> dict[str, Any]:
        """How a recording becomes a clip, for a JSON document."""
        return {
            "time_steps": self.time_steps,
            "grid": list(self.grid),
            "bin_by": self.bin_by,
            "binary": self.binary,
            "sensor_size": None if self.sensor_size is None else list(self.sensor_size),
            "crop": None if self.crop is None else list(self.crop),
            "duration_us": self.duration_us,
        }


class BinningOptions(TypedDict, total=False):
    """What a caller can choose instead of the binning of training."""

    time_steps: int | None
    grid: int | None  # its side
    sensor_size: Size | None  # for recordings of another sensor
    crop: Crop | None


def load_network(path: str | Path, *, device: str | None = None, **binning: Unpack[BinningOptions]) -> Classifier:
    """The network of a run or a saved folder; without `labels.json`, classes are numbers, bins the config's."""
    from ripe_mambaspike.models.pretrained import from_pretrained
    from ripe_mambaspike.nn.eval_mode import choose_device

    folder = find_checkpoint(path)
    model = from_pretrained(folder)
    time_steps, grid = binning.get("time_steps"), binning.get("grid")
    config, labels = model.config, model.labels
    own_steps, own_grid = (labels.time_steps, labels.grid) if labels else (config.time_steps, config.in_size)
    if labels is not None and config.max_time_steps is not None and own_steps > config.max_time_steps:
        raise WeightsError(
            f"{folder / LABELS_FILE}: data.steps: expected at most {config.max_time_steps}, as the network takes, "
            f"got {own_steps}",
            field="data.time_steps",
            path=folder / LABELS_FILE,
        )
    max_steps = config.max_time_steps or MAX_TIME_STEPS
    if time_steps is not None and not 1 <= time_steps <= max_steps:
        raise InputError.expected("time_steps", f"1 to {max_steps} for the network of {folder}", time_steps)
    if grid is not None and not MIN_SIDE <= grid <= MAX_SIDE:
        raise InputError.expected("grid", f"a side from {MIN_SIDE} to {MAX_SIDE}", grid)
    return make_classifier(
        model if device is None else model.to(choose_device(device)),
        labels,
        own_steps if time_steps is None else time_steps,
        own_grid if grid is None else (grid, grid),
        grid_given=grid is not None,
        sensor_size=binning.get("sensor_size"),
        crop=binning.get("crop"),
    )


def make_classifier(
    model: "Model",
    labels: Labels | None,
    time_steps: int,
    grid: tuple[int, int],
    *,
    grid_given: bool = False,
    sensor_size: Size | None = None,
    crop: Crop | None = None,
) -> Classifier:
    """A classifier from a network and its labels, if any; the caller's sensor size and crop take precedence."""
    ReadOptions(sensor_size)  # also validates it
    own_size, own_crop = (labels.sensor_size, labels.crop) if labels else (None, None)
    size = own_size if sensor_size is None else (int(sensor_size[0]), int(sensor_size[1]))
    if crop is not None:
        binned: Crop | None = check_crop(crop, size if sensor_size is not None else None)
    elif own_crop is not None and size != own_size:
        raise InputError(
            f"crop: expected --crop X Y W H with a sensor of {format_size(size)}, since the network bins a part of its "
            f"own {format_size(own_size)} sensor; got none",
            field="crop",
        )
    else:
        binned = own_crop
    return Classifier(
        model,
        labels.classes if labels else tuple(map(str, range(model.config.num_classes))),
        time_steps,
        grid,
        labels.by if labels else "time",
        labels.binary if labels else False,
        grid_given,
        size,
        binned,
        labels.duration_us if labels else None,
        sensor_size is not None,
        crop is not None,
        labels.calibration.unknown if labels and labels.calibration else None,
    )


def read_recording(classifier: Classifier, path: str | Path, format: str | None = None) -> Recording:
    """A recording of the network's sensor, cropped as the network bins it. An error always names the file.

    A file whose format is named may have no header; then it is one of the network's sensor.
    """
    size = classifier.sensor_size if classifier.sensor_given else None
    try:
        recording = open_with_default_size(
            read, path, sensor_size=size, default_size=classifier.sensor_size, format=format
        )
        return fit_recording(classifier, replace(recording, metadata={**recording.metadata, "file": str(path)}))
    except RipeError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}", field=error.field, path=path) from error


def fit_recording(classifier: Classifier, recording: Recording) -> Recording:
    """The part of the recording that is binned, with a warning where its sensor had to be guessed."""
    fitted = classifier.region.fit(recording)
    for sentence in fitted.warnings[len(recording.warnings) :]:
        warn_about(recording, sentence)
    return fitted


def make_clip(classifier: Classifier, recording: Recording) -> "Tensor":
    """The recording's events as the network's input: counts [T, 2, H, W] float32."""
    if not len(recording):
        raise InputError.expected("recording", "at least one event", "no events")
    recording = fit_recording(classifier, recording)
    check_grid(classifier, recording.sensor_size)
    _check_polarity(recording)
    return bin_events(
        recording, classifier.time_steps, by=classifier.bin_by, grid=classifier.grid, binary=classifier.binary
    )


def check_grid(classifier: Classifier, binned_size: Size) -> None:
    """Refuse a grid finer than the sensor, which has empty cells, unless it was trained so or the caller gave it."""
    (height, width), (across, down) = classifier.grid, binned_size
    if classifier.grid_given or (height <= down and width <= across):
        return
    if classifier.region.binned_size == binned_size and not (classifier.sensor_given or classifier.crop_given):
        return
    fits, largest = max(MIN_SIDE, min(across, down)), max(height, width)
    raise InputError.expected(
        "grid",
        f"at most the {across}×{down} pixels of the sensor",
        f"the network's {width}×{height}",
        hint=f"for ripe predict, stream and serve, --grid {fits} fits the sensor, --grid {largest} keeps the network's",
    )


def duration_warning(classifier: Classifier, recording: Recording) -> str | None:
    """A warning if a recording's bins are much longer or shorter than those of the training clips."""
    usual, duration = classifier.duration_us, recording.duration_us + 1
    if usual is None or max(usual, duration) <= MAX_DURATION_RATIO * min(usual, duration):
        return None
    return (
        f"duration: expected about {usual / 1e6:.3g} s, as the training clips last, got {duration / 1e6:.3g} s; "
        "ripe stream --window classifies parts of a long recording"
    )


def warn_about(recording: Recording, sentence: str) -> None:
    """A `RecordingWarning` that names the recording's file, where known."""
    file = recording.metadata.get("file") or recording.metadata.get("name")
    warnings.warn(f"{file}: {sentence}" if file else sentence, RecordingWarning, stacklevel=4)


def _check_polarity(recording: Recording) -> None:
    """Refuse events of one polarity alone: the network was trained on both."""
    polarity = recording.events["p"]
    if len(polarity) >= MIN_POLARITY_EVENTS and (polarity[0] == polarity).all():
        kind = "ON" if polarity[0] else "OFF"
        raise InputError.expected("polarity", "events of both polarities", f"{len(polarity):,} that are all {kind}")
