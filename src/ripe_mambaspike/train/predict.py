"""A trained network on a recording of any length: what it is, how sure, and which class led when."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ripe_mambaspike.errors import InputError, WeightsError
from ripe_mambaspike.events.binning import bin_events, step_bounds
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.models.labels import LABELS_FILE, find_checkpoint, read_labels

if TYPE_CHECKING:
    from torch import Tensor

    from ripe_mambaspike.models.base import Model

SMALLEST_SIDE = 8  # three strides of two
MOST_STEPS = 4096  # that a causal network is asked for in one go; beyond, a slip and not a wish
MANY = 100  # events, of which some brighten and some darken if the sensor tells


@dataclass(frozen=True)
class Classifier:
    """A network with the names of its classes and the binning that it was trained on."""

    model: "Model"
    names: tuple[str, ...]
    steps: int
    grid: tuple[int, int]  # (height, width)
    by: Literal["time", "count"]
    binary: bool
    grid_asked: bool = False  # whether a caller chose the grid, whatever the sensor


@dataclass(frozen=True)
class Moment:
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
    timeline: tuple[Moment, ...]  # one a step; one in all for a network that answers once

    @property
    def runner_up(self) -> tuple[str, float] | None:
        """The next likely class; None where there is one class alone."""
        others = [(name, share) for name, share in self.probabilities.items() if name != self.label]
        return max(others, key=lambda one: one[1], default=None)


def load_classifier(path: str | Path, *, steps: int | None = None, grid: int | None = None) -> Classifier:
    """The network of a run or of a folder; without `labels.json` classes have numbers and the config gives the bins."""
    from ripe_mambaspike.models.pretrained import from_pretrained

    folder = find_checkpoint(path)
    model = from_pretrained(folder)
    config = model.config
    names: tuple[str, ...] = tuple(map(str, range(config.classes)))
    own_steps, own_grid, by, binary = config.steps, config.resolution, "time", False
    if (folder / LABELS_FILE).exists():
        labels = read_labels(folder)
        names, own_steps, own_grid, by, binary = labels.classes, labels.steps, labels.grid, labels.by, labels.binary
        origin = folder / LABELS_FILE
        if len(names) != config.classes:
            raise WeightsError(f"{origin} names {len(names)} classes; the network has {config.classes}")
        if config.most_steps is not None and own_steps > config.most_steps:
            raise WeightsError(f"{origin} says {own_steps} steps; the network was made for at most {config.steps}")
    most = config.most_steps or MOST_STEPS
    if steps is not None and not 1 <= steps <= most:
        raise InputError(f"steps is {steps}; the network of {folder} takes from 1 to {most}")
    if grid is not None and not SMALLEST_SIDE <= grid <= 65536:
        raise InputError(f"grid is {grid}; a side from {SMALLEST_SIDE} to 65536 is wanted")
    return Classifier(
        model,
        names,
        own_steps if steps is None else steps,
        own_grid if grid is None else (grid, grid),
        "count" if by == "count" else "time",
        binary,
        grid is not None,
    )


def predict(classifier: Classifier, recording: Recording) -> Prediction:
    """The class of one recording: softmax of the logits' mean over the steps, in float32.

    The timeline has the mean over the steps so far. The network mixes tokens of the whole clip, so a step's logits are
    not those that a shorter recording would give.
    """
    import torch

    from ripe_mambaspike.models.base import clip_logits

    one = classifier
    with torch.no_grad():
        logits = one.model(clip_of(one, recording).unsqueeze(0).to(one.model.dtype))
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
        Moment(start, stop, one.names[leader], share)
        for start, stop, (leader, share) in zip(edges, edges[1:], leaders, strict=False)
    )
    return Prediction(one.names[best], shares[best], dict(zip(one.names, shares, strict=True)), timeline)


def clip_of(classifier: Classifier, recording: Recording) -> "Tensor":
    """The recording's events as the network wants them: counts [T, 2, H, W] float32."""
    if not len(recording):
        raise InputError("the recording has no events; at least one is wanted")
    _check_sensor(classifier, recording)
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


def _check_sensor(classifier: Classifier, recording: Recording) -> None:
    """A grid finer than the sensor has cells that no pixel falls into; whoever asks for one gets it."""
    (height, width), (across, down) = classifier.grid, recording.sensor_size
    if classifier.grid_asked or (height <= down and width <= across):
        return
    fits = max(SMALLEST_SIDE, min(across, down))
    raise InputError(
        f"its sensor of {across}×{down} pixels is smaller than the {width}×{height} grid of the network; "
        f"a grid of {fits} fits it, and one of {max(height, width)} is taken when it is asked for"
    )


def _check_polarity(recording: Recording) -> None:
    """A sensor without polarities gives events of one alone, which the network never saw."""
    polarity = recording.events["p"]
    if len(polarity) >= MANY and (polarity[0] == polarity).all():
        kind = "ON" if polarity[0] else "OFF"
        raise InputError(f"all of its {len(polarity):,} events are {kind}; the network wants those of both polarities")
