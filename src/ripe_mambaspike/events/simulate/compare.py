"""Real recordings against their simulated twins: counts, polarity, rate, images, sequences, intervals, in numbers.

A twin is what the simulator makes of the picture that the real recording was made of. Both lists are in one order.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.simulate.smooth import box

BINS = 10  # of the sequence, and of the rates that tell apart
WINDOW_US = 5000  # of the rate over time, about
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
FEATURES = ("events", "ON share", *(f"bin {n + 1}" for n in range(BINS)), *(f"interval {q:.0%}" for q in QUANTILES))
FOLDS = 5
PENALTY = 1e-3  # on the squares of the weights, beside the mean loss
# What a calibration should reach.
EVENTS_TOLERANCE, CLASS_TOLERANCE, ON_SHARE_TOLERANCE = 0.05, 0.10, 0.02
MIN_IMAGE_CORRELATION, MIN_SEQUENCE_CORRELATION = 0.90, 0.75
TARGET_SEPARABILITY = 0.75  # below it is the aim, not a requirement

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RealSimulated:
    """One number of the real recordings and of the simulated ones."""

    real: float
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated over real; 1 where both are 0."""
        if self.real == 0:
            return 1.0 if self.simulated == 0 else math.inf
        return self.simulated / self.real


@dataclass(frozen=True)
class ClassEvents:
    label: int
    recordings: int
    events: RealSimulated  # mean


@dataclass(frozen=True)
class Feature:
    """One of the numbers that may separate a recording from its twin."""

    name: str
    mean: RealSimulated
    spread: RealSimulated  # standard deviation
    apart: float  # simulated less real mean, in spreads
    weight: float  # in the regression on all pairs; above 0 where more of it speaks for simulated


@dataclass(frozen=True)
class Comparison:
    size: tuple[int, int]  # of the sensor, (width, height)
    duration_us: int
    events: RealSimulated  # mean
    classes: tuple[ClassEvents, ...]
    on_share: RealSimulated  # of all events
    rate_real: tuple[float, ...]  # events/s in equal windows, mean over the recordings
    rate_simulated: tuple[float, ...]
    image: tuple[float, ...]  # correlation of each recording's event image with its twin's
    sequence: tuple[float, ...]  # the same of ten bins
    intervals: tuple[RealSimulated, ...]  # µs between one event and the next, by `QUANTILES`; means
    features: tuple[Feature, ...]
    separability: float  # accuracy of a logistic regression on the features; 0.5 is chance

    def document(self) -> dict[str, Any]:
        """As JSON has it; a ratio to nothing is null."""
        return {
            "recordings": len(self.image),
            "size": list(self.size),
            "duration_us": self.duration_us,
            "events": _real_and_simulated(self.events),
            "classes": {
                str(each.label): {"recordings": each.recordings, **_real_and_simulated(each.events)}
                for each in self.classes
            },
            "on_share": asdict(self.on_share),
            "image_correlation": _summary(self.image),
            "sequence_correlation": _summary(self.sequence),
            "intervals_us": {
                f"{quantile:.0%}": _real_and_simulated(each)
                for quantile, each in zip(QUANTILES, self.intervals, strict=True)
            },
            "separability": {"accuracy": self.separability, "features": [asdict(each) for each in self.features]},
            "rate_hz": {"real": list(self.rate_real), "simulated": list(self.rate_simulated)},
        }


def compare_recordings(
    real: Sequence[Events],
    simulated: Sequence[Events],
    labels: Sequence[int],
    size: tuple[int, int],
    duration_us: int,
) -> Comparison:
    """Times are from 0; what is later than the duration counts in its last part."""
    if not len(real) == len(simulated) == len(labels) or not len(real):
        got = f"{len(real)}, {len(simulated)} and {len(labels)}"
        raise InputError.expected("real", "as many real as simulated recordings and labels, at least 1", got)
    if duration_us < 1:
        raise InputError.expected("duration_us", "at least 1", duration_us)
    image, sequence = [], []
    for index, pair in enumerate(zip(real, simulated, strict=True)):
        for name, events in zip(("real", "simulated"), pair, strict=True):
            _check(events, size, f"{name} recording {index}")
        ours, theirs = (count_bins(events, size, duration_us) for events in pair)
        image.append(correlation(smoothed(ours.sum(0)), smoothed(theirs.sum(0))))
        sequence.append(correlation(smoothed(ours), smoothed(theirs)))
    which = np.asarray(labels)
    counts = np.array([[len(events) for events in each] for each in (real, simulated)])
    classes = tuple(
        ClassEvents(int(label), int((which == label).sum()), _means(counts[:, which == label]))
        for label in np.unique(which)
    )
    on = [sum(int(events["p"].sum()) for events in each) for each in (real, simulated)]
    shares = [some / max(int(total), 1) for some, total in zip(on, counts.sum(1), strict=True)]
    ours, theirs = (np.array([features(events, duration_us) for events in each]) for each in (real, simulated))
    return Comparison(
        size,
        int(duration_us),
        _means(counts),
        classes,
        RealSimulated(*shares),
        mean_rate(real, duration_us),
        mean_rate(simulated, duration_us),
        tuple(image),
        tuple(sequence),
        tuple(_means(np.stack([ours[:, index], theirs[:, index]])) for index in range(2 + BINS, len(FEATURES))),
        describe_features(ours, theirs),
        separability(ours, theirs),
    )


def unmet_targets(comparison: Comparison) -> list[str]:
    """Which of the numbers that a calibration should reach were not reached, in words."""
    found = []
    for name, both, within in [
        ("mean events", comparison.events, EVENTS_TOLERANCE),
        *((f"mean events of class {each.label}", each.events, CLASS_TOLERANCE) for each in comparison.classes),
    ]:
        if abs(both.simulated - both.real) > within * both.real:
            found.append(f"{name}: {both.simulated:.1f} simulated, {both.real:.1f} real; within {within:.0%} is wanted")
    share = comparison.on_share
    if abs(share.simulated - share.real) > ON_SHARE_TOLERANCE:
        found.append(
            f"ON share: {share.simulated:.4f} simulated, {share.real:.4f} real; within {ON_SHARE_TOLERANCE} is wanted"
        )
    for name, each, least in (
        ("event image", comparison.image, MIN_IMAGE_CORRELATION),
        ("ten-bin sequence", comparison.sequence, MIN_SEQUENCE_CORRELATION),
    ):
        if (mean := float(np.mean(each))) < least:
            found.append(f"{name}: a mean correlation of {mean:.4f}; at least {least} is wanted")
    return found


def bin_index(events: Events, bins: int, duration_us: int) -> NDArray[np.int64]:
    """In which equal part of the duration each event is."""
    return np.minimum(events["t"].astype(np.int64) * bins // duration_us, bins - 1)


def count_bins(events: Events, size: tuple[int, int], duration_us: int, bins: int = BINS) -> Array:
    """Counts [bins, 2, H, W] over equal parts of the duration, OFF before ON."""
    width, height = size
    cell = bin_index(events, bins, duration_us) * 2 + events["p"]
    cell = (cell * height + events["y"]) * width + events["x"]
    return np.bincount(cell, minlength=bins * 2 * height * width).reshape(bins, 2, height, width).astype(np.float64)


def smoothed(counts: Array) -> Array:
    """A 3×3 mean [..., H, W]; beyond the border there are no events."""
    return box(torch.from_numpy(counts)).numpy()


def correlation(one: Array, other: Array) -> float:
    """Pearson's, over all values; 0 where one of them is the same everywhere."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    one, other = one - one.mean(), other - other.mean()
    return float((one * other).sum()) / math.sqrt(float((one * one).sum()) * float((other * other).sum()))


def mean_rate(recordings: Sequence[Events], duration_us: int) -> tuple[float, ...]:
    """Events/s in equal windows of about 5 ms, mean over the recordings."""
    windows = max(1, round(duration_us / WINDOW_US))
    when = np.concatenate([bin_index(events, windows, duration_us) for events in recordings])
    counts = np.bincount(when, minlength=windows)
    return tuple((counts * (windows * 1e6 / duration_us / len(recordings))).tolist())


def features(events: Events, duration_us: int) -> Array:
    """`FEATURES` of a recording. Without events every share is 0, and with one at most an interval is the duration."""
    count = len(events)
    shares = np.bincount(bin_index(events, BINS, duration_us), minlength=BINS) / max(count, 1)
    between = np.diff(np.sort(events["t"])) if count > 1 else np.array([duration_us])
    return np.concatenate([[count, events["p"].sum() / max(count, 1)], shares, np.quantile(between, QUANTILES)])


def separability(real: Array, simulated: Array, folds: int = FOLDS) -> float:
    """How often a logistic regression says rightly which of the rows [N, F] are real and which simulated.

    Every pair is judged once, by a regression on the other folds; twins are in one fold, the pairs dealt out in turn.
    One pair alone leaves nothing to learn from, and chance.
    """
    if len(real) < 2:
        return 0.5
    fold = np.arange(len(real)) % min(folds, len(real))
    right = 0
    for held in range(int(fold.max()) + 1):
        seen, judged = fold != held, fold == held
        mean, scale = _standard(np.concatenate([real[seen], simulated[seen]]))
        weights = regression((real[seen] - mean) / scale, (simulated[seen] - mean) / scale)
        scores = [((each[judged] - mean) / scale) @ weights[1:] + weights[0] for each in (real, simulated)]
        right += int((scores[0] <= 0).sum()) + int((scores[1] > 0).sum())
    return right / (2 * len(real))


def regression(real: Array, simulated: Array, rounds: int = 100) -> Array:
    """The weights of a logistic regression [1 + F], the constant first, by Newton's method; above 0 is simulated."""
    rows = np.concatenate([real, simulated])
    rows = np.concatenate([np.ones((len(rows), 1)), rows], 1)
    sign = np.repeat([-1.0, 1.0], [len(real), len(simulated)])
    penalty = np.full(rows.shape[1], PENALTY)
    penalty[0] = 1e-9  # the constant is free

    def loss(weights: Array) -> float:
        return float(np.logaddexp(0, -sign * (rows @ weights)).mean() + penalty @ weights**2 / 2)

    weights = np.zeros(rows.shape[1])
    now = loss(weights)
    for _ in range(rounds):
        wrong = 0.5 - 0.5 * np.tanh(sign * (rows @ weights) / 2)  # the chance given to the other side
        slope = -(rows.T @ (sign * wrong)) / len(rows) + penalty * weights
        curve = (rows.T * (wrong * (1 - wrong))) @ rows / len(rows) + np.diag(penalty)
        step = np.linalg.solve(curve, slope)
        if float(slope @ step) < 1e-14:
            break
        length = 1.0
        while length > 1e-9 and loss(weights - length * step) > now - 1e-4 * length * float(slope @ step):
            length /= 2
        weights = weights - length * step
        now = loss(weights)
    return weights


def describe_features(real: Array, simulated: Array) -> tuple[Feature, ...]:
    """What of each feature differs between rows [N, F] of real and of simulated ones."""
    mean, scale = _standard(np.concatenate([real, simulated]))
    weights = regression((real - mean) / scale, (simulated - mean) / scale)[1:]
    made = []
    for name, ours, theirs, weight in zip(FEATURES, real.T, simulated.T, weights.tolist(), strict=True):
        spread = math.sqrt((ours.var() + theirs.var()) / 2) or 1.0
        means, spreads = (
            RealSimulated(ours.mean().item(), theirs.mean().item()),
            RealSimulated(ours.std().item(), theirs.std().item()),
        )
        made.append(Feature(name, means, spreads, (means.simulated - means.real) / spread, weight))
    return tuple(made)


def _standard(rows: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column; 1 for one that is the same everywhere."""
    mean, scale = rows.mean(0), rows.std(0)
    return mean, np.where(scale > 1e-9 * np.maximum(np.abs(mean), 1e-9), scale, 1.0)


def _check(events: Events, size: tuple[int, int], what: str) -> None:
    if not len(events):
        return
    highest = int(events["x"].max()), int(events["y"].max())
    if highest[0] >= size[0] or highest[1] >= size[1] or events["t"].min() < 0 or events["p"].max() > 1:
        raise InputError.expected(what, f"events inside {size}, from 0 µs on", f"some at {highest}, or earlier")


def _summary(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": float(np.mean(values)), "worst": min(values), "each": list(values)}


def _means(rows: NDArray[Any]) -> RealSimulated:
    """Of rows [2, N], real and simulated."""
    return RealSimulated(*rows.mean(1).tolist())


def _real_and_simulated(both: RealSimulated) -> dict[str, float | None]:
    return {**asdict(both), "ratio": both.ratio if math.isfinite(both.ratio) else None}
