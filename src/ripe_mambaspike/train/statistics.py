"""Runs that differ in their seed alone as one group: mean and spread, and whether two groups differ (Welch's test)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TINY = 1e-300  # stands for a zero that is divided by
PRECISION = 1e-16
MOST_TERMS = 10_000
TOP = 5  # the likeliest classes that top-5 counts


@dataclass(frozen=True)
class Group:
    """Some values, one a run."""

    values: tuple[float, ...]
    mean: float
    std: float | None  # with n − 1; None for a single value
    best: float


@dataclass(frozen=True)
class Welch:
    """Welch's test of two groups' means, without equal variances."""

    difference: float  # mean of the first less that of the second
    t: float
    freedom: float  # degrees of it, by Welch and Satterthwaite
    p: float  # two-sided


def group(values: Sequence[float]) -> Group | None:
    """What is said of some values; None where there are none."""
    if not values:
        return None
    return Group(tuple(values), mean(values), std(values), max(values))


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def std(values: Sequence[float]) -> float | None:
    """Of the sample, with n − 1."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def welch(first: Sequence[float], second: Sequence[float]) -> Welch | None:
    """The test; None where a group has fewer than two values or neither varies."""
    spread_first, spread_second = std(first) if first else None, std(second) if second else None
    if spread_first is None or spread_second is None:
        return None
    shares = (spread_first**2 / len(first), spread_second**2 / len(second))  # squared errors of the two means
    total = sum(shares)
    difference = mean(first) - mean(second)
    scale = max(map(abs, (*first, *second)))
    if math.sqrt(total) <= 1e-12 * scale:  # what rounding leaves of equal values
        return None
    t = difference / math.sqrt(total)
    freedom = 1 / sum((share / total) ** 2 / (len(one) - 1) for share, one in zip(shares, (first, second), strict=True))
    return Welch(difference, t, freedom, two_sided(t, freedom))


def two_sided(t: float, freedom: float) -> float:
    """How likely a |t| of at least this is, by Student's distribution."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized I_x(a, b) for a, b > 0 and x in [0, 1]."""
    if not (a > 0 and b > 0 and 0 <= x <= 1):
        raise ValueError(f"a, b, x are {a}, {b}, {x}; positive a and b, and x from 0 to 1 are wanted")
    if x in (0.0, 1.0):
        return x
    # The fraction converges fast below the mean; above it, the other tail is taken.
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _fraction(a, b, x))


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)) of the incomplete beta function, by Lentz's method."""
    value = ratio = 1.0  # ratio: of the numerators of two approximants that follow each other
    inverse = 0.0  # of the denominators, the other way round
    for term in range(1, MOST_TERMS):
        half, odd = divmod(term, 2)
        if odd:
            factor = -(a + half) * (a + b + half) * x / ((a + term - 1) * (a + term))
        else:
            factor = half * (b - half) * x / ((a + term - 1) * (a + term))
        inverse = 1 / (1 + factor * inverse or TINY)
        ratio = 1 + factor / ratio or TINY
        value *= ratio * inverse
        if abs(ratio * inverse - 1) < PRECISION:
            break
    return value


def too_few_for_top5(num_classes: int) -> bool:
    """Whether every label is among the five likeliest, whatever the network says."""
    return num_classes <= TOP


def pool(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Results of the folds of one seed, or of its only run, as one: all clips together, shares in percent."""
    count = sum(result["n"] for result in results)
    pooled: dict[str, Any] = {"n": count}
    for name in ("top1", "top5"):
        shares = [None if name == "top5" and _is_trivial(result) else result.get(name) for result in results]
        if any(share is None for share in shares):
            pooled[name] = None
            continue
        correct = sum(round(share * result["n"]) for share, result in zip(shares, results, strict=True))
        pooled[name] = 100 * correct / count
    return pooled


def _is_trivial(result: dict[str, Any]) -> bool:
    """Whether a result's top-5 says nothing; results written before it was left out hold 1."""
    scores = result.get("per_class")
    return isinstance(scores, list) and too_few_for_top5(len(scores))
