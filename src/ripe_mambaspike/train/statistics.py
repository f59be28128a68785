"""Statistics of runs that differ only in their seed: mean and spread, and whether two groups differ."""

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from ripe_mambaspike.models.accuracy import TrainingResult, has_trivial_top5


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of one value per run."""

    values: tuple[float, ...]
    mean: float
    std: float | None  # with n − 1; None for a single value
    best: float


@dataclass(frozen=True)
class WelchTest:
    """Welch's t-test of two groups' means, without equal variances."""

    difference: float  # mean of the first less that of the second
    t: float
    freedom: float  # degrees of freedom, by Welch and Satterthwaite
    p: float  # two-sided
    standard_error: float  # of the difference


@dataclass(frozen=True)
class Interval:
    """A 95 % interval by Student's t."""

    low: float
    high: float


@dataclass(frozen=True)
class PooledAccuracy:
    """Accuracy over all folds of one seed, in percent; top5 is None for five classes or fewer."""

    n: int
    top1: float
    top5: float | None


def group_statistics(values: Sequence[float]) -> GroupStatistics | None:
    """The statistics; None without values."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return GroupStatistics(tuple(values), statistics.fmean(values), std, max(values))


def welch_test(first: Sequence[float], second: Sequence[float]) -> WelchTest | None:
    """The test; None if a group has fewer than two values, or neither varies."""
    if min(len(first), len(second)) < 2:
        return None
    variances = [statistics.variance(group) / len(group) for group in (first, second)]
    error = math.sqrt(sum(variances))
    if error <= 1e-12 * max(map(abs, (*first, *second))):  # equal up to rounding
        return None
    from scipy.stats import ttest_ind  # here: it takes half a second to import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one of the groups may not vary
        found = ttest_ind(first, second, equal_var=False)
    difference = statistics.fmean(first) - statistics.fmean(second)
    return WelchTest(difference, float(found.statistic), float(found.df), float(found.pvalue), error)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The 95 % interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    half = _t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return Interval(mean - half, mean + half)


def difference_interval(test: WelchTest) -> Interval:
    """The 95 % interval of the difference that a test is about."""
    half = _t_quantile(test.freedom) * test.standard_error
    return Interval(test.difference - half, test.difference + half)


def holm_adjusted(values: Sequence[float | None]) -> list[float | None]:
    """p-values of several tests, adjusted by Holm's method; None stays None and counts for no test."""
    known = sorted((value, index) for index, value in enumerate(values) if value is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (value, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * value))
        adjusted[index] = largest
    return adjusted


def _t_quantile(freedom: float) -> float:
    from scipy.stats import t  # here: it takes half a second to import

    return float(t.ppf(0.975, freedom))


def pool_results(results: Sequence[TrainingResult]) -> PooledAccuracy:
    """The results of the folds of one seed, or of its only run, combined."""
    count = sum(result.n for result in results)

    def pooled(shares: Sequence[float]) -> float:
        return 100 * sum(round(share * result.n) for share, result in zip(shares, results, strict=True)) / count

    # Results of earlier versions have a top-5 of 1 for few classes.
    top5 = [None if has_trivial_top5(len(result.per_class)) else result.top5 for result in results]
    known = [share for share in top5 if share is not None]
    return PooledAccuracy(
        count, pooled([result.tested_top1 for result in results]), pooled(known) if len(known) == len(top5) else None
    )
