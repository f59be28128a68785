"""The arms of a study compared: mean and interval of each, its difference from the reference, and from the paper's.

A single run is never called significant: without two runs on both sides there is no p, and no verdict.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from ripe_mambaspike.models.peers.published import PublishedResult, published_results
from ripe_mambaspike.studies.study import COUNTERPARTS, Arm, PaperSet, PaperValue, Study
from ripe_mambaspike.train.statistics import difference_interval, mean_interval, welch_test

SIGNIFICANT = 0.05
STARS = ((0.001, "***"), (0.01, "**"), (SIGNIFICANT, "*"))
Verdict = Literal[
    "same direction",  # both say that the arm differs, to the same side
    "opposite direction",
    "not resolved",  # the paper says that it differs; these runs do not show it
    "no difference shown, none printed",
    "a difference shown, none printed",
    "too few runs",
]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Values of several seeds; sd with n − 1 and the 95 % interval of the mean are None for a single one."""

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    values: list[float]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """An arm less the reference, in percentage points; p is Welch's, two-sided."""

    delta: float
    low: float | None = None  # the 95 % interval
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None  # adjusted for all arms of the set
    stars: str | None = None  # of p, as the paper has them
    sigmas: float | None = None  # |delta| in standard deviations of the reference, as in Table 11


class PaperComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What the paper prints, on which of its datasets, and whether ours points the same way."""

    dataset: str
    counterpart: bool  # whether our set stands for this dataset; otherwise the paper has no value for the one it does
    top1: float | None
    delta: float | None
    sd: float | None
    rate_sd: float | None = None
    same_sign: bool | None = None
    within_two_sd: bool | None = None  # its difference within two standard deviations of ours
    verdict: Verdict | None = None


def summarize_values(values: Sequence[float]) -> Summary | None:
    """The statistics; None without values."""
    if not values:
        return None
    interval = mean_interval(values)
    return Summary(
        n=len(values), mean=statistics.fmean(values), sd=statistics.stdev(values) if len(values) > 1 else None,
        low=interval.low if interval else None, high=interval.high if interval else None, values=list(values),
    )  # fmt: skip


def effect_of(arm: Sequence[float], reference: Sequence[float]) -> Effect | None:
    """The difference of two groups' means; None if one is empty."""
    if not arm or not reference:
        return None
    delta = statistics.fmean(arm) - statistics.fmean(reference)
    test = welch_test(arm, reference)
    if test is None:
        return Effect(delta=delta)
    interval = difference_interval(test)
    sd = statistics.stdev(reference)
    return Effect(
        delta=delta, low=interval.low, high=interval.high, p=test.p, stars=stars_of(test.p),
        sigmas=abs(delta) / sd if sd else None,
    )  # fmt: skip


def stars_of(p: float) -> str:
    return next((stars for bound, stars in STARS if p < bound), "n.s.")


def compare_with_paper(
    study: Study, arm: Arm, dataset: str, ours: Summary | None, reference: Summary | None, effect: Effect | None
) -> PaperComparison | None:
    """Our arm beside the paper's; None where the paper prints nothing of it.

    There is no verdict on what the paper prints of another dataset than the one that the set stands for.
    """
    found = paper_value(study, arm, COUNTERPARTS.get(dataset))
    if found is None:
        return None
    where, value = found
    counterpart = where == COUNTERPARTS.get(dataset)
    same, within = None, None
    if effect is not None and value.delta and effect.delta:
        same = effect.delta * value.delta > 0
    if effect is not None and value.delta is not None and ours and reference:
        within = _within_two_sd(effect.delta - value.delta, ours.sd, reference.sd)
    return PaperComparison(
        dataset=where, counterpart=counterpart, top1=value.top1, delta=value.delta, sd=value.sd,
        rate_sd=value.rate_sd, same_sign=same, within_two_sd=within,
        verdict=judge(value, effect) if counterpart and arm.name != study.reference else None,
    )  # fmt: skip


def judge(value: PaperValue, effect: Effect | None) -> Verdict | None:
    """Whether these runs show what the paper prints; None where it prints no difference to compare with."""
    if effect is None or (value.delta is None and value.significant is None):
        return None
    if effect.p is None:
        return "too few runs"
    differs = effect.p < SIGNIFICANT
    if value.significant is False or value.delta == 0:
        return "a difference shown, none printed" if differs else "no difference shown, none printed"
    if value.delta is None:
        return None
    if not differs:
        return "not resolved"
    return "same direction" if effect.delta * value.delta > 0 else "opposite direction"


def paper_value(study: Study, arm: Arm, counterpart: PaperSet | None) -> tuple[PaperSet, PaperValue] | None:
    """The paper's value on the dataset that ours stands for, or else on the first that it has one for."""
    values = _of_table_1(arm) if "table-1" in study.answers else arm.paper
    if counterpart in values:
        return counterpart, values[counterpart]
    return next(iter(values.items()), None)


def _of_table_1(arm: Arm) -> dict[PaperSet, PaperValue]:
    """By the network's name; of Mamba-Spike, the row under the paper's own protocol."""
    found: dict[PaperSet, PaperValue] = {}
    ours = {row.dataset: row.accuracy for row in published_results() if row.mark == "ours" and not _is_lite(row)}
    for row in published_results():
        if _is_of(row, arm):
            delta = None if row.mark == "ours" else row.accuracy - ours[row.dataset]
            found[row.dataset] = PaperValue(top1=row.accuracy, delta=delta)
    return found


def _is_of(row: PublishedResult, arm: Arm) -> bool:
    if row.mark == "ours":
        return arm.name == "ours" and not _is_lite(row)
    return row.model == arm.name and row.mark != "own protocol"


def _within_two_sd(distance: float, one: float | None, other: float | None) -> bool | None:
    if one is None or other is None:
        return None
    return abs(distance) <= 2 * math.sqrt(one**2 + other**2)


def _is_lite(row: PublishedResult) -> bool:
    return (row.model or "").endswith("-lite")
