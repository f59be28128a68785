"""Summary of several seeds of one recipe: mean, spread and best, and a test against another group."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ripe_mambaspike.errors import InputError, short_repr
from ripe_mambaspike.files import atomic_write
from ripe_mambaspike.models.accuracy import BEST_TEST_EPOCH
from ripe_mambaspike.schema import read_json
from ripe_mambaspike.train.jobs import RunOutcome
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.statistics import GroupStatistics, WelchTest, group_statistics, pool_results, welch_test

SUMMARY_FILE, SUMMARY_SHEET = "summary.json", "summary.md"
DASH = "–"


class SeedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of one seed over all its folds, in percent."""

    seed: int
    n: int
    top1: float
    top5: float | None
    picked_on: str | None
    runs: list[str]
    folds: list[float] | None = None  # top-1 of each


class RunFailure(msgspec.Struct, frozen=True):
    run: str
    seed: int
    fold: int | None
    error: str | None
    log: str


class GroupComparison(msgspec.Struct, frozen=True):
    """Comparison with another group by Welch's t-test on the seeds' top-1; None if it cannot be computed."""

    folder: str
    recipe: str | None
    top1: GroupStatistics
    welch: WelchTest | None
    protocol: str = ""  # this and the set are empty where an earlier summary does not say them
    set: str = ""


class SeedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `summary.json`; accuracies in percent. A seed with a failed run has no accuracy."""

    format: Literal["ripe-seeds"] = "ripe-seeds"
    version: Literal[1] = 1
    recipe: str
    settings: list[str] = []
    set: str = ""
    protocol: str = ""
    folds: int | None = None
    unit: str = "percent"
    top1: GroupStatistics | None
    top5: GroupStatistics | None = None
    seeds: list[SeedAccuracy] = []
    reused: list[str] = []
    failed: list[RunFailure] = []
    against: GroupComparison | None = None

    def to_dict(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)


def summarize_seeds(
    recipe: Recipe, settings: Sequence[str], folds: int | None, outcomes: Sequence[RunOutcome]
) -> SeedSummary:
    by_seed: dict[int, list[RunOutcome]] = {}
    for outcome in outcomes:
        by_seed.setdefault(outcome.run.seed, []).append(outcome)
    rows = []
    for seed, its in by_seed.items():
        results = [outcome.result for outcome in its if outcome.result is not None]
        if len(results) < len(its):
            continue
        pooled = pool_results(results)
        rows.append(
            SeedAccuracy(
                seed=seed, n=pooled.n, top1=pooled.top1, top5=pooled.top5, picked_on=results[0].picked_on,
                runs=[outcome.run.name for outcome in its],
                folds=None if folds is None else [pool_results([result]).top1 for result in results],
            )
        )  # fmt: skip
    top5 = [row.top5 for row in rows if row.top5 is not None]
    return SeedSummary(
        recipe=recipe.name,
        settings=list(settings),
        set=recipe.data.dataset,
        protocol=recipe.run.protocol,
        folds=folds,
        top1=group_statistics([row.top1 for row in rows]),
        top5=group_statistics(top5) if len(top5) == len(rows) else None,
        seeds=rows,
        reused=[outcome.run.name for outcome in outcomes if outcome.reused],
        failed=[
            RunFailure(one.run.name, one.run.seed, one.run.fold, one.error, str(one.run.log))
            for one in outcomes
            if one.result is None
        ],
    )


class _OtherSummary(msgspec.Struct, frozen=True):
    """The fields that are read from another group's summary."""

    format: Literal["ripe-seeds"]
    version: Literal[1]
    top1: "_OtherValues"
    recipe: str | None = None
    protocol: str = ""
    set: str = ""


class _OtherValues(msgspec.Struct, frozen=True):
    values: Annotated[list[Annotated[float, Meta(ge=0, le=100)]], Meta(min_length=1)]


def read_summary(folder: Path) -> _OtherSummary:
    """Another group's summary, as `train_seeds` wrote it."""
    return read_json(folder / SUMMARY_FILE, _OtherSummary, error=InputError, hint="use a folder of ripe seeds")


def check_comparable(recipe: Recipe, other: _OtherSummary, folder: Path) -> None:
    """Refuse a comparison of groups of different datasets, or whose networks were selected on different clips."""
    for name, ours, theirs in (
        ("dataset", recipe.data.dataset, other.set),
        ("protocol", recipe.run.protocol, other.protocol),
    ):
        if theirs not in ("", ours):
            wanted = f"a group of the same {name}, {ours!r}"
            raise InputError.expected("--against", wanted, short_repr(theirs), path=folder / SUMMARY_FILE)


def compare_groups(summary: SeedSummary, other: _OtherSummary, name: str) -> GroupComparison:
    theirs = group_statistics(other.top1.values)
    assert theirs is not None  # there is a value
    test = welch_test(summary.top1.values if summary.top1 else (), theirs.values)
    return GroupComparison(name, other.recipe, theirs, test, other.protocol, other.set)


def summary_table(summary: SeedSummary) -> tuple[list[str], list[list[str]]]:
    """Header and rows, one per seed; top-5 only if the group has one."""
    names = [name for name in ("top1", "top5") if name == "top1" or summary.top5 is not None]
    head = ["seed", *(f"{name[:3]}-{name[3]} %" for name in names), "clips", "picked on"]
    rows = [
        [str(row.seed), *(_number(getattr(row, name)) for name in names), f"{row.n:,}", row.picked_on or DASH]
        for row in summary.seeds
    ]
    return head, rows


def summary_lines(summary: SeedSummary) -> list[str]:
    """Mean, spread and best of each accuracy, and the comparison."""
    lines = [f"top-1: {_spread(summary.top1)}"]
    if summary.top5 is not None:
        lines.append(f"top-5: {_spread(summary.top5)}")
    if summary.protocol == "paper":
        lines.append(BEST_TEST_EPOCH)
    if (other := summary.against) is None:
        return lines
    lines.append(f"against {other.folder} ({other.recipe}): top-1 {_spread(other.top1)}")
    for name, ours, theirs in (
        ("dataset", summary.set, other.set),
        ("protocol", summary.protocol, other.protocol),
    ):
        if not theirs:
            lines.append(f"warning: its {name} is not known; this group's is {ours}")
    if (test := other.welch) is None:
        return [*lines, "Welch's t-test needs two seeds in each group, and values that vary"]
    numbers = f"t = {test.t:.2f}, {test.freedom:.1f} degrees of freedom, two-sided p = {test.p:.2g}"
    return [*lines, f"difference {test.difference:+.2f}; Welch's {numbers}"]


def summary_sheet(summary: SeedSummary) -> str:
    """The content of `summary.md`."""
    folds = f", {summary.folds} folds each, all clips together" if summary.folds else ""
    lines = [f"# {summary.recipe}: {len(summary.seeds)} seeds on {summary.set}{folds}", ""]
    if summary.settings:
        lines += ["Settings: " + ", ".join(f"`{setting}`" for setting in summary.settings), ""]
    head, rows = summary_table(summary)
    lines += ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    lines += ["", *(f"- {line}" for line in summary_lines(summary))]
    lines += [f"- {one.run} failed: {one.error}" for one in summary.failed]
    return "\n".join(lines) + "\n"


def _spread(group: GroupStatistics | None) -> str:
    if group is None:
        return DASH
    std = "" if group.std is None else f" ± {group.std:.2f}"
    return f"{group.mean:.2f}{std} %, best {group.best:.2f} % of {len(group.values)}"


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def write_summary(out: Path, summary: SeedSummary) -> None:
    text = json.dumps(summary.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        for name, content in ((SUMMARY_FILE, text), (SUMMARY_SHEET, summary_sheet(summary))):
            with atomic_write(out / name) as file:
                file.write(content.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError.expected("--out", "a folder that can be written", error, path=out) from error
