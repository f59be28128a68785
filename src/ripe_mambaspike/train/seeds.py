"""One recipe with several seeds, and folds: mean, spread and best, and a test against another group."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ripe_mambaspike.data.sets.registry import STORE
from ripe_mambaspike.data.settings import root_of
from ripe_mambaspike.data.store import current_key
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.files import atomic_write
from ripe_mambaspike.models.evaluate import TrainingResult, read_result
from ripe_mambaspike.schema import read_json
from ripe_mambaspike.train import jobs
from ripe_mambaspike.train.jobs import Report, RunOutcome, SeedRun
from ripe_mambaspike.train.recipe import MAX_SEED, RESUMABLE_FIELDS, Recipe
from ripe_mambaspike.train.recipes import load_recipe, with_settings
from ripe_mambaspike.train.run_folder import RECIPE_FILE, changed_fields
from ripe_mambaspike.train.statistics import GroupStatistics, WelchTest, group_statistics, pool_results, welch_test

MAX_SEEDS = 1000
MAX_JOBS = 256
CHOSEN_FIELDS = ("run.seed", "data.fold", "data.folds")
IGNORED_FIELDS = ("name", *RESUMABLE_FIELDS)  # may differ between two runs of one recipe
SUMMARY_FILE, SUMMARY_SHEET = "summary.json", "summary.md"
DASH = "–"


class SeedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Of one seed, over all its folds, in percent."""

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
    """With another group, by Welch's t-test on the seeds' top-1; without numbers where it cannot be made."""

    folder: str
    recipe: str | None
    top1: GroupStatistics
    welch: WelchTest | None


class SeedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `summary.json` holds; accuracies in percent. A seed with a failed run has no accuracy."""

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
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


def train_seeds(
    recipe: str,
    seeds: str | Sequence[int],
    *,
    folds: int | None = None,
    settings: Sequence[str] = (),
    out: Path | None = None,
    num_jobs: int | None = None,
    slurm: Sequence[str] = (),
    against: Path | None = None,
    report: Report = lambda _: None,
) -> SeedSummary:
    """Train a recipe with several seeds, each run in a process of its own, and summarize them in `out`.

    Runs that have ended are not run again, and those that were stopped are resumed.

    recipe: name of a shipped recipe, or a .yaml file
    seeds: "0-4", "0,2,7", or ints
    folds: cross-validate every seed in so many parts; by default as the recipe says
    settings: fields of the recipe, "schedule.epochs=3"
    out: folder of the runs and the summary; runs/NAME-seeds by default
    num_jobs: runs at a time on this machine
    slurm: instead, a partition and "key=value" options of submitit
    against: folder of another group to compare with
    report: is called when a run has ended
    """
    numbers = parse_seeds(seeds) if isinstance(seeds, str) else list(seeds)
    _check_options(settings, num_jobs, slurm)
    base = load_recipe(recipe)
    out = out or Path("runs") / f"{base.name}-seeds"
    other = None if against is None else read_summary(against)
    folds = folds if folds is not None else base.data.folds or None
    runs = plan_runs(numbers, folds, out)
    words = {run: run_settings(run, folds, settings) for run in runs}
    pinned = pinned_store(with_settings(base, words[runs[0]]))
    recipes = {run: with_settings(base, [*words[run], *pinned]) for run in runs}
    ended = {run: finished_result(run, recipes[run]) for run in runs}
    commands = [(run, train_command(recipe, run, [*words[run], *pinned])) for run in runs if ended[run] is None]
    executor = jobs.slurm_executor(out, jobs.slurm_parameters(slurm)) if slurm and commands else None
    _make_folder(out / "logs")
    if executor is None:
        made = jobs.run_local(commands, num_jobs or 1, report)
    else:
        made = jobs.run_slurm(commands, executor, report)
    outcomes = {outcome.run: outcome for outcome in made}
    for run, result in ended.items():
        outcomes.setdefault(run, RunOutcome(run, result, reused=True))
    summary = summarize_seeds(recipes[runs[0]], settings, folds, [outcomes[run] for run in runs])
    if other is not None:
        summary = msgspec.structs.replace(summary, against=_compare(summary, other, str(against)))
    _write_summary(out, summary)
    return summary


def parse_seeds(text: str) -> list[int]:
    """`0-4`, `0,2,7` or `3`."""

    def wrong(expected: str) -> ConfigError:
        return ConfigError(f"--seeds: expected {expected}, got {text[:60]!r}", field="--seeds")

    words = text.split("-") if "-" in text else text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
        raise wrong("a range such as 0-4, a list such as 0,2,7, or one int")
    numbers = [int(word) for word in words]
    if "-" in text:
        if len(numbers) != 2 or numbers[0] > numbers[1]:
            raise wrong("a range such as 0-4")
        numbers = list(range(numbers[0], min(numbers[1], numbers[0] + MAX_SEEDS) + 1))
    if len(set(numbers)) != len(numbers):
        raise wrong("each seed once")
    if len(numbers) > MAX_SEEDS or max(numbers) > MAX_SEED:
        raise wrong(f"at most {MAX_SEEDS} seeds up to {MAX_SEED}")
    return numbers


def _check_options(settings: Sequence[str], num_jobs: int | None, slurm: Sequence[str]) -> None:
    for setting in settings:
        if (name := setting.partition("=")[0].strip()) in CHOSEN_FIELDS:
            raise ConfigError(
                f"{name}: expected no setting, since --seeds and --folds set it, got {setting!r}", field=name
            )
    if num_jobs is not None and not 1 <= num_jobs <= MAX_JOBS:
        raise ConfigError(f"--jobs: expected an int from 1 to {MAX_JOBS}, got {num_jobs}", field="--jobs")
    if num_jobs is not None and slurm:
        raise ConfigError("--jobs: expected either --jobs or --slurm, got both", field="--jobs")


def plan_runs(seeds: Sequence[int], folds: int | None, out: Path) -> list[SeedRun]:
    """Every seed, or every fold of every seed, with a folder of its own."""
    if folds is None:
        return [SeedRun(seed, None, out / f"seed-{seed}") for seed in seeds]
    if folds < 2:
        raise ConfigError(f"--folds: expected an int of at least 2, got {folds}", field="--folds")
    return [SeedRun(seed, fold, out / f"seed-{seed}-fold-{fold}") for seed in seeds for fold in range(folds)]


def run_settings(run: SeedRun, folds: int | None, settings: Sequence[str]) -> list[str]:
    """The recipe's settings in this run."""
    fold = [] if run.fold is None else [f"data.folds={folds}", f"data.fold={run.fold}"]
    return [*settings, f"run.seed={run.seed}", *fold]


def pinned_store(recipe: Recipe) -> list[str]:
    """The setting that keeps all runs of a group on one preparation of the dataset.

    Empty where the recipe names one, or none is there yet.
    """
    data = recipe.data
    key = current_key(root_of(data) / STORE / data.dataset) if data.store is None else None
    return [] if key is None else [f"data.store={key}"]


def train_command(recipe: str, run: SeedRun, settings: Sequence[str]) -> list[str]:
    """The command of one run; it resumes an earlier try that was stopped."""
    program = [sys.executable, "-m", "ripe_mambaspike", "train", recipe]
    return [*program, "--out", str(run.folder), "--resume", "auto", "--set", *settings]


def finished_result(run: SeedRun, recipe: Recipe) -> TrainingResult | None:
    """The result of an earlier run of this recipe; None where there is none, an error where the recipe differs."""
    result = read_result(run.folder)
    if result is None:
        return None
    path = run.folder / RECIPE_FILE
    if differing := changed_fields(recipe, load_recipe(path), IGNORED_FIELDS):
        raise InputError(
            f"{', '.join(differing[:4])}: expected as in {path}, of a run that has ended, got other values; use "
            "another --out",
            field=differing[0],
            path=path,
        )
    return result


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
    """What is read of another group's summary."""

    format: Literal["ripe-seeds"]
    version: Literal[1]
    top1: "_OtherValues"
    recipe: str | None = None


class _OtherValues(msgspec.Struct, frozen=True):
    values: Annotated[list[Annotated[float, Meta(ge=0, le=100)]], Meta(min_length=1)]


def read_summary(folder: Path) -> _OtherSummary:
    """Another group's summary, as `train_seeds` wrote it."""
    return read_json(folder / SUMMARY_FILE, _OtherSummary, error=InputError, hint="use a folder of ripe seeds")


def _compare(summary: SeedSummary, other: _OtherSummary, name: str) -> GroupComparison:
    theirs = group_statistics(other.top1.values)
    assert theirs is not None  # there is a value
    test = welch_test(summary.top1.values if summary.top1 else (), theirs.values)
    return GroupComparison(name, other.recipe, theirs, test)


def summary_table(summary: SeedSummary) -> tuple[list[str], list[list[str]]]:
    """Head and rows, one per seed; top-5 only where the group has one."""
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
    if (other := summary.against) is None:
        return lines
    lines.append(f"against {other.folder} ({other.recipe}): top-1 {_spread(other.top1)}")
    if (test := other.welch) is None:
        return [*lines, "Welch's t-test needs two seeds in each group, and values that vary"]
    numbers = f"t = {test.t:.2f}, {test.freedom:.1f} degrees of freedom, two-sided p = {test.p:.2g}"
    return [*lines, f"difference {test.difference:+.2f}; Welch's {numbers}"]


def summary_sheet(summary: SeedSummary) -> str:
    """What `summary.md` holds."""
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


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _write_summary(out: Path, summary: SeedSummary) -> None:
    text = json.dumps(summary.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        for name, content in ((SUMMARY_FILE, text), (SUMMARY_SHEET, summary_sheet(summary))):
            with atomic_write(out / name) as file:
                file.write(content.encode("utf-8", "replace"))
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"--out: expected a folder that can be written, got {folder} ({error.strerror or error})",
        field="--out",
        path=folder,
    )
