"""A trained network on a recording of any length: what it is, how sure, and which class led when."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ripe_mambaspike.errors import InputError, RipeError, WeightsError
from ripe_mambaspike.events.binning import bin_events, step_bounds
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.recording import Recording, RecordingWarning
from ripe_mambaspike.events.region import Crop, SensorRegion, Size, check_crop, format_size
from ripe_mambaspike.events.source import Options
from ripe_mambaspike.models.labels import LABELS_FILE, Labels, find_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

    from ripe_mambaspike.models.base import Model

MIN_SIDE = 8  # three strides of two
MAX_TIME_STEPS = 4096  # that a causal network is asked for in one go; beyond, a slip and not a wish
MIN_POLARITY_EVENTS = 100  # events, of which some brighten and some darken if the sensor tells
MAX_DURATION_RATIO = 2  # of a recording's duration and the training clips', beyond which it is warned of


@dataclass(frozen=True)
class Classifier:
    """A network with the names of its classes and the binning that it was trained on."""

    model: "Model"
    names: tuple[str, ...]
    steps: int
    grid: tuple[int, int]  # (height, width)
    by: Literal["time", "count"]
    binary: bool
    grid_given: bool = False  # whether a caller chose the grid, whatever the sensor
    sensor_size: Size | None = None  # (width, height) before the crop; None: not known
    crop: Crop | None = None  # (x, y, width, height) of the sensor that is binned; None: all of it
    duration_us: int | None = None  # the median of the training clips' durations
    sensor_given: bool = False  # whether a caller chose the sensor's size, whatever the recording says
    crop_given: bool = False

    @property
    def region(self) -> SensorRegion:
        """What it bins of which sensor."""
        return SensorRegion(self.sensor_size, self.crop, self.sensor_given, self.crop_given)

    def describe_binning(self) -> dict[str, Any]:
        """All that turns a recording into a clip, for a JSON document."""
        return {
            "steps": self.steps,
            "grid": list(self.grid),
            "by": self.by,
            "binary": self.binary,
            "sensor_size": None if self.sensor_size is None else list(self.sensor_size),
            "crop": None if self.crop is None else list(self.crop),
            "duration_us": self.duration_us,
        }


@dataclass(frozen=True)
class TimelineStep:
    """One step of a recording, [start, stop) in µs of its own clock, and what led by its end."""

    start_us: int
    stop_us: int
    label: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """What a recording is taken for."""

    label: str
    probability: float
    probabilities: dict[str, float]  # of all classes, in the order of the outputs
    timeline: tuple[TimelineStep, ...]  # one a step; one in all for a network that answers once

    @property
    def runner_up(self) -> tuple[str, float] | None:
        """The next likely class; None where there is one class alone."""
        others = [(name, share) for name, share in self.probabilities.items() if name != self.label]
        return max(others, key=lambda one: one[1], default=None)


def load(
    path: str | Path,
    *,
    steps: int | None = None,
    grid: int | None = None,
    sensor_size: Size | None = None,
    crop: Crop | None = None,
) -> Classifier:
    """The network of a run or of a folder; without `labels.json` classes have numbers and the config gives the bins.

    `sensor_size` (width, height) and `crop` (x, y, width, height) are for recordings of another sensor than the one
    that it was trained on.
    """
    from ripe_mambaspike.models.pretrained import from_pretrained

    folder = find_checkpoint(path)
    model = from_pretrained(folder)
    config = model.config
    labels = model.labels
    own_steps, own_grid = (labels.steps, labels.grid) if labels else (config.time_steps, config.in_size)
    if labels is not None:
        origin = folder / LABELS_FILE
        if config.max_time_steps is not None and own_steps > config.max_time_steps:
            raise WeightsError(f"{origin} says {own_steps} steps; the network was made for at most {config.time_steps}")
    most = config.max_time_steps or MAX_TIME_STEPS
    if steps is not None and not 1 <= steps <= most:
        raise InputError(f"steps is {steps}; the network of {folder} takes from 1 to {most}")
    if grid is not None and not MIN_SIDE <= grid <= 65536:
        raise InputError(f"grid is {grid}; a side from {MIN_SIDE} to 65536 is wanted")
    return make_classifier(
        model,
        labels,
        own_steps if steps is None else steps,
        own_grid if grid is None else (grid, grid),
        grid_given=grid is not None,
        sensor_size=sensor_size,
        crop=crop,
    )


def make_classifier(
    model: "Model",
    labels: Labels | None,
    steps: int,
    grid: tuple[int, int],
    *,
    grid_given: bool = False,
    sensor_size: Size | None = None,
    crop: Crop | None = None,
) -> Classifier:
    """A network with what its labels say, where it has some, but for the sensor and the crop that a caller gives."""
    Options(sensor_size)  # which checks it
    own_size, own_crop = (labels.sensor_size, labels.crop) if labels else (None, None)
    size = own_size if sensor_size is None else (int(sensor_size[0]), int(sensor_size[1]))
    if crop is not None:
        part: Crop | None = check_crop(crop, size if sensor_size is not None else None)
    elif own_crop is not None and size != own_size:
        raise InputError(
            f"crop: expected --crop X Y W H with a sensor of {format_size(size)}, since the network bins a part of its "
            f"own {format_size(own_size)} sensor; got none",
            field="crop",
        )
    else:
        part = own_crop
    return Classifier(
        model,
        labels.classes if labels else tuple(map(str, range(model.config.num_classes))),
        steps,
        grid,
        labels.by if labels else "time",
        labels.binary if labels else False,
        grid_given,
        size,
        part,
        labels.duration_us if labels else None,
        sensor_size is not None,
        crop is not None,
    )


def read_recording(classifier: Classifier, path: str | Path) -> Recording:
    """A recording as the network bins it: of its sensor, cropped. An error always names the file."""
    try:
        recording = read(path, sensor_size=classifier.sensor_size if classifier.sensor_given else None)
        return _fit(classifier, replace(recording, metadata={**recording.metadata, "file": str(path)}))
    except RipeError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}", field=error.field, path=path) from error


def predict(classifier: Classifier, recording: Recording) -> Prediction:
    """The class of one recording: softmax of the logits' mean over the steps, in float32.

    The timeline has the mean over the steps so far. The network mixes tokens of the whole clip, so a step's logits are
    not those that a shorter recording would give.
    """
    import torch

    from ripe_mambaspike.models.base import clip_logits

    one = classifier
    recording = _fit(one, recording)
    with torch.no_grad():
        logits = one.model(make_clip(one, recording).unsqueeze(0).to(one.model.dtype))
    if sentence := duration_warning(one, recording):
        _warn(recording, sentence)
    clip = torch.softmax(clip_logits(logits)[0], -1)
    if not clip.isfinite().all():
        raise WeightsError("the network's logits for it are not finite; a network that was trained well is wanted")
    shares = [float(share) for share in clip]
    best = int(clip.argmax())
    running = _running(logits[0])
    running[-1] = clip
    edges = step_edges(recording, len(running), one.by)
    leaders = [(int(row.argmax()), float(row.max())) for row in running]
    timeline = tuple(
        TimelineStep(start, stop, one.names[leader], share)
        for start, stop, (leader, share) in zip(edges, edges[1:], leaders, strict=False)
    )
    return Prediction(one.names[best], shares[best], dict(zip(one.names, shares, strict=True)), timeline)


def make_clip(classifier: Classifier, recording: Recording) -> "Tensor":
    """The recording's events as the network wants them: counts [T, 2, H, W] float32."""
    if not len(recording):
        raise InputError("the recording has no events; at least one is wanted")
    recording = _fit(classifier, recording)
    check_grid(classifier, recording.sensor_size)
    _check_polarity(recording)
    one = classifier
    return bin_events(recording, one.steps, by=one.by, grid=one.grid, binary=one.binary)


def step_edges(recording: Recording, steps: int, by: Literal["time", "count"]) -> list[int]:
    """Where each step begins in µs, and where the last one ends: T + 1 times, as `bin_events` divides them."""
    start, stop = recording.first_us, recording.last_us + 1
    if by == "time":
        return [start + -(-index * (stop - start) // steps) for index in range(steps + 1)]
    ordered = recording.ordered()
    times = ordered["t"]
    bounds = step_bounds(ordered, steps, "count", None, None, None)
    return [int(times[bound]) if bound < len(times) else stop for bound in bounds[:-1]] + [stop]


def _running(logits: "Tensor") -> "Tensor":
    """Logits [T, classes] → probabilities of their mean up to every step [T, classes], in float32 at least."""
    import torch

    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    counts = torch.arange(1, len(wide) + 1, dtype=wide.dtype, device=wide.device)
    return torch.softmax(wide.cumsum(0) / counts.unsqueeze(1), -1)


def check_grid(classifier: Classifier, binned_size: Size) -> None:
    """A grid finer than the sensor has cells that no pixel falls into; whoever trained so, or asks for one, gets it."""
    (height, width), (across, down) = classifier.grid, binned_size
    if classifier.grid_given or (height <= down and width <= across):
        return
    if classifier.region.binned_size == binned_size and not (classifier.sensor_given or classifier.crop_given):
        return
    fits, largest = max(MIN_SIDE, min(across, down)), max(height, width)
    raise InputError(
        f"grid: expected at most the {across}×{down} pixels of the sensor, got the network's {width}×{height}; "
        f"--grid {fits} fits it, and --grid {largest} is taken when it is asked for",
        field="grid",
    )


def _fit(classifier: Classifier, recording: Recording) -> Recording:
    """The recording as it is binned, with a warning where its sensor had to be guessed."""
    fitted = classifier.region.fit(recording)
    for sentence in fitted.warnings[len(recording.warnings) :]:
        _warn(recording, sentence)
    return fitted


def duration_warning(classifier: Classifier, recording: Recording) -> str | None:
    """A sentence about a recording whose bins are much longer or shorter than those of the training clips."""
    usual, lasts = classifier.duration_us, recording.duration_us + 1
    if usual is None or max(usual, lasts) <= MAX_DURATION_RATIO * min(usual, lasts):
        return None
    return (
        f"duration: expected about {usual / 1e6:.3g} s, as the training clips last, got {lasts / 1e6:.3g} s; "
        "ripe stream --window looks at parts of a long one"
    )


def _warn(recording: Recording, sentence: str) -> None:
    file = recording.metadata.get("file") or recording.metadata.get("name")
    warnings.warn(f"{file}: {sentence}" if file else sentence, RecordingWarning, stacklevel=4)


def _check_polarity(recording: Recording) -> None:
    """A sensor without polarities gives events of one alone, which the network never saw."""
    polarity = recording.events["p"]
    if len(polarity) >= MIN_POLARITY_EVENTS and (polarity[0] == polarity).all():
        kind = "ON" if polarity[0] else "OFF"
        raise InputError(f"all of its {len(polarity):,} events are {kind}; the network wants those of both polarities")
