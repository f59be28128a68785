"""Compare real recordings with their simulated twins: counts, polarity, rate, images, sequences and intervals.

A twin is a simulated recording of the same picture. Both lists are in the same order.
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

BINS = 10  # of the sequence, and of the rate features
WINDOW_US = 5000  # approximate bin width of the rate over time
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
FEATURES = ("events", "ON share", *(f"bin {n + 1}" for n in range(BINS)), *(f"interval {q:.0%}" for q in QUANTILES))
FOLDS = 5
PENALTY = 1e-3  # L2 penalty on the weights
# Targets of a calibration.
EVENTS_TOLERANCE, CLASS_TOLERANCE, ON_SHARE_TOLERANCE = 0.05, 0.10, 0.02
MIN_IMAGE_CORRELATION, MIN_SEQUENCE_CORRELATION = 0.90, 0.75
TARGET_SEPARABILITY = 0.75  # lower is better; reported, not required

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RealSimulated:
    """A statistic of the real and of the simulated recordings."""

    real: float
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated / real; 1 if both are 0."""
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
    """A statistic that may separate recordings from their twins."""

    name: str
    mean: RealSimulated
    spread: RealSimulated  # standard deviation
    apart: float  # difference of the means, simulated − real, in standard deviations
    weight: float  # in the regression on all pairs; positive values indicate simulated


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
        """A JSON document; infinite ratios become null."""
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
    """Compare recordings whose times start at 0; events after the duration count in its last part."""
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
    """A sentence for each target that the calibration did not reach."""
    found = []
    for name, both, within in [
        ("mean events", comparison.events, EVENTS_TOLERANCE),
        *((f"mean events of class {each.label}", each.events, CLASS_TOLERANCE) for each in comparison.classes),
    ]:
        if abs(both.simulated - both.real) > within * both.real:
            found.append(f"{name}: expected {both.real:.1f} (real) ± {within:.0%}, got {both.simulated:.1f}")
    share = comparison.on_share
    if abs(share.simulated - share.real) > ON_SHARE_TOLERANCE:
        found.append(
            f"ON share: expected {share.real:.4f} (real) ± {ON_SHARE_TOLERANCE}, got {share.simulated:.4f} simulated"
        )
    for name, each, least in (
        ("event image", comparison.image, MIN_IMAGE_CORRELATION),
        ("ten-bin sequence", comparison.sequence, MIN_SEQUENCE_CORRELATION),
    ):
        if (mean := float(np.mean(each))) < least:
            found.append(f"{name}: expected a mean correlation of at least {least}, got {mean:.4f}")
    return found


def bin_index(events: Events, bins: int, duration_us: int) -> NDArray[np.int64]:
    """The index of the time bin of each event."""
    return np.minimum(events["t"].astype(np.int64) * bins // duration_us, bins - 1)


def count_bins(events: Events, size: tuple[int, int], duration_us: int, bins: int = BINS) -> Array:
    """Counts [bins, 2, H, W] over equal parts of the duration, OFF before ON."""
    width, height = size
    cell = bin_index(events, bins, duration_us) * 2 + events["p"]
    cell = (cell * height + events["y"]) * width + events["x"]
    return np.bincount(cell, minlength=bins * 2 * height * width).reshape(bins, 2, height, width).astype(np.float64)


def smoothed(counts: Array) -> Array:
    """A 3×3 mean [..., H, W] with zero padding."""
    return box(torch.from_numpy(counts)).numpy()


def correlation(one: Array, other: Array) -> float:
    """Pearson correlation over all values; 0 if one input is constant."""
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
    """`FEATURES` of a recording. Without events shares are 0; with at most one event intervals are the duration."""
    count = len(events)
    shares = np.bincount(bin_index(events, BINS, duration_us), minlength=BINS) / max(count, 1)
    between = np.diff(np.sort(events["t"])) if count > 1 else np.array([duration_us])
    return np.concatenate([[count, events["p"].sum() / max(count, 1)], shares, np.quantile(between, QUANTILES)])


def separability(real: Array, simulated: Array, folds: int = FOLDS) -> float:
    """Cross-validated accuracy of a logistic regression that classifies rows [N, F] as real or simulated.

    Every pair is classified once, by a regression on the other folds; twins are in the same fold. A single pair gives
    chance level.
    """
    if len(real) < 2:
        return 0.5
    fold = np.arange(len(real)) % min(folds, len(real))
    right = 0
    for held in range(int(fold.max()) + 1):
        train, test = fold != held, fold == held
        mean, scale = _standard(np.concatenate([real[train], simulated[train]]))
        weights = regression((real[train] - mean) / scale, (simulated[train] - mean) / scale)
        scores = [((each[test] - mean) / scale) @ weights[1:] + weights[0] for each in (real, simulated)]
        right += int((scores[0] <= 0).sum()) + int((scores[1] > 0).sum())
    return right / (2 * len(real))


def regression(real: Array, simulated: Array, rounds: int = 100) -> Array:
    """The weights of a logistic regression [1 + F], the constant first, by Newton's method; above 0 is simulated."""
    rows = np.concatenate([real, simulated])
    rows = np.concatenate([np.ones((len(rows), 1)), rows], 1)
    sign = np.repeat([-1.0, 1.0], [len(real), len(simulated)])
    penalty = np.full(rows.shape[1], PENALTY)
    penalty[0] = 1e-9  # the intercept is not penalized

    def loss(weights: Array) -> float:
        return float(np.logaddexp(0, -sign * (rows @ weights)).mean() + penalty @ weights**2 / 2)

    weights = np.zeros(rows.shape[1])
    now = loss(weights)
    for _ in range(rounds):
        wrong = 0.5 - 0.5 * np.tanh(sign * (rows @ weights) / 2)  # probability of the wrong class
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
    """The difference of each feature between real and simulated rows [N, F]."""
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
    """Mean and standard deviation of each column; 1 for constant columns."""
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
