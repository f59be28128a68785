"""Classify a recording of any length: the class, its probability, and the leading class at each step."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ripe_mambaspike.errors import WeightsError
from ripe_mambaspike.events.binning import step_bounds
from ripe_mambaspike.events.incremental import edge_of
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.inference.classifier import (
    Classifier,
    duration_warning,
    fit_recording,
    make_classifier,
    make_clip,
    read_recording,
    warn_about,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ripe_mambaspike.models.base import Model


@dataclass(frozen=True)
class TimelineStep:
    """One step of a recording, [start, stop) in µs of its own clock, and the class that leads by its end."""

    start_us: int
    stop_us: int
    label: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The class of a recording.

    Args:
        label: name of the most likely class
        probability: its probability, from 0 to 1
        probabilities: of all classes by their names, in the order of the outputs
        timeline: for each step its time span, the leading class by its end and the probability of that class
        score: of the recording, for a network with a threshold for unknown recordings (`ripe calibrate --keep`)
        unknown: whether the score is below the threshold; `label` is the most likely class all the same
    """

    label: str
    probability: float
    probabilities: dict[str, float]  # of all classes, in the order of the outputs
    timeline: tuple[TimelineStep, ...]  # one for each step; a single one for a network that classifies once
    step_probabilities: tuple[tuple[float, ...], ...] = ()  # of all classes by the end of each step
    score: float | None = None
    unknown: bool = False

    @property
    def runner_up(self) -> tuple[str, float] | None:
        """The second most likely class; None if there is only one class."""
        others = [(name, share) for name, share in self.probabilities.items() if name != self.label]
        return max(others, key=lambda other: other[1], default=None)


def predict(network: "Classifier | Model", recording: Recording | str | Path) -> Prediction:
    """The class of one recording: softmax of the mean of the logits over the steps, in float32.

    The timeline shows the mean over the steps so far. Unless the network is causal it mixes tokens of the whole clip,
    so a step's logits are not those that a shorter recording would give.

    Args:
        network: what `load` gives, or a model
        recording: a recording, or the path of one
    """
    if isinstance(network, Classifier):
        classifier = network
    else:
        labels, config = network.labels, network.config
        binning = (labels.time_steps, labels.grid) if labels else (config.time_steps, config.in_size)
        classifier = make_classifier(network.eval(), labels, *binning)
    if isinstance(recording, Recording):
        recording = fit_recording(classifier, recording)
    else:
        recording = read_recording(classifier, recording)
    prediction = predict_fitted(classifier, recording)
    if sentence := duration_warning(classifier, recording):
        warn_about(recording, sentence)
    return prediction


def predict_fitted(classifier: Classifier, recording: Recording) -> Prediction:
    """The class of a recording that `classifier.region.fit` returned. Nothing is warned about: the caller does that."""
    import torch

    with torch.no_grad():
        logits = classifier.compute_logits(make_clip(classifier, recording).unsqueeze(0)).cpu()
    return prediction_of(classifier, recording, logits)


def prediction_of(classifier: Classifier, recording: Recording, logits: "Tensor") -> Prediction:
    """The prediction for a recording from the logits of its steps [1, T, classes]."""
    import torch

    from ripe_mambaspike.inference.unknown import apply_rule
    from ripe_mambaspike.models.base import clip_logits

    mean = clip_logits(logits)[0]
    clip = torch.softmax(mean, -1)
    if not clip.isfinite().all():
        raise WeightsError.expected("logits", "finite numbers", "some that are not")
    running = _running_probabilities(logits[0])
    running[-1] = clip
    names, edges = classifier.class_names, step_edges(recording, len(running), classifier.bin_by)
    timeline = tuple(
        TimelineStep(start, stop, names[int(row.argmax())], float(row.max()))
        for start, stop, row in zip(edges, edges[1:], running, strict=False)
    )
    shares, best = clip.tolist(), int(clip.argmax())
    steps = tuple(tuple(row) for row in running.tolist())
    named = dict(zip(names, shares, strict=True))
    return Prediction(names[best], shares[best], named, timeline, steps, *apply_rule(classifier.unknown, mean))


def step_edges(recording: Recording, time_steps: int, bin_by: Literal["time", "count"]) -> list[int]:
    """The T + 1 edges of the steps in µs, as `bin_events` divides the recording."""
    start, stop = recording.first_us, recording.last_us + 1
    if bin_by == "time":
        return [edge_of(start, stop - start, time_steps, index) for index in range(time_steps + 1)]
    ordered = recording.ordered()
    times = ordered["t"]
    bounds = step_bounds(ordered, time_steps, "count", None, None, None)
    return [int(times[bound]) if bound < len(times) else stop for bound in bounds[:-1]] + [stop]


def _running_probabilities(logits: "Tensor") -> "Tensor":
    """Logits [T, classes] → probabilities of their mean up to every step [T, classes], in float32 at least."""
    import torch

    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    counts = torch.arange(1, len(wide) + 1, dtype=wide.dtype, device=wide.device)
    return torch.softmax(wide.cumsum(0) / counts.unsqueeze(1), -1)
