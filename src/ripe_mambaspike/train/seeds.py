"""Train one recipe with several seeds, and folds."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ripe_mambaspike.data.sets.registry import STORE
from ripe_mambaspike.data.settings import root_of
from ripe_mambaspike.data.store import current_key
from ripe_mambaspike.errors import ConfigError, InputError, short_repr
from ripe_mambaspike.models.accuracy import TrainingResult, read_result
from ripe_mambaspike.train import jobs
from ripe_mambaspike.train.jobs import Report, RunOutcome, SeedRun
from ripe_mambaspike.train.recipe import MAX_SEED, RESUMABLE_FIELDS, Recipe
from ripe_mambaspike.train.recipes import load_recipe, with_settings
from ripe_mambaspike.train.run_folder import RECIPE_FILE, changed_fields, describe_changes
from ripe_mambaspike.train.seed_summary import (
    SeedSummary,
    check_comparable,
    compare_groups,
    read_summary,
    summarize_seeds,
    write_summary,
)

MAX_SEEDS = 1000
MAX_JOBS = 256
CHOSEN_FIELDS = ("run.seed", "data.fold", "data.folds")
IGNORED_FIELDS = ("name", *RESUMABLE_FIELDS)  # may differ between two runs of one recipe


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
    """Train a recipe with several seeds, each run in its own process, and summarize them in `out`.

    Finished runs are not repeated, and stopped ones are resumed.

    Args:
        recipe: name of a shipped recipe, or a .yaml file
        seeds: "0-4", "0,2,7", or ints
        folds: cross-validate every seed in so many parts; by default as the recipe says
        settings: fields of the recipe, "schedule.epochs=3"
        out: folder of the runs and the summary; runs/NAME-seeds by default
        num_jobs: runs at a time on this machine
        slurm: instead, a partition and "key=value" options of submitit
        against: folder of another group of the same dataset and protocol to compare with
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
    if other is not None and against is not None:
        check_comparable(recipes[runs[0]], other, against)
    ended = {run: finished_result(run, recipes[run]) for run in runs}
    commands = [(run, train_command(recipe, run, [*words[run], *pinned])) for run in runs if ended[run] is None]
    executor = jobs.slurm_executor(out, jobs.slurm_parameters(slurm)) if slurm and commands else None
    try:
        (out / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.expected("--out", "a folder that can be written", error, path=out) from error
    if executor is None:
        made = jobs.run_local(commands, num_jobs or 1, report)
    else:
        made = jobs.run_slurm(commands, executor, report)
    outcomes = {outcome.run: outcome for outcome in made}
    for run, result in ended.items():
        outcomes.setdefault(run, RunOutcome(run, result, reused=True))
    summary = summarize_seeds(recipes[runs[0]], settings, folds, [outcomes[run] for run in runs])
    if other is not None:
        summary = msgspec.structs.replace(summary, against=compare_groups(summary, other, str(against)))
    write_summary(out, summary)
    return summary


def parse_seeds(text: str) -> list[int]:
    """`0-4`, `0,2,7` or `3`."""

    def wrong(expected: str) -> ConfigError:
        return ConfigError.expected("--seeds", expected, short_repr(text))

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
            raise ConfigError.expected(name, "no setting, since --seeds and --folds set it", repr(setting))
    if num_jobs is not None and not 1 <= num_jobs <= MAX_JOBS:
        raise ConfigError.expected("--jobs", f"an int from 1 to {MAX_JOBS}", num_jobs)
    if num_jobs is not None and slurm:
        raise ConfigError.expected("--jobs", "either --jobs or --slurm", "both")


def plan_runs(seeds: Sequence[int], folds: int | None, out: Path) -> list[SeedRun]:
    """Every seed, or every fold of every seed, with its own folder."""
    if folds is None:
        return [SeedRun(seed, None, out / f"seed-{seed}") for seed in seeds]
    if folds < 2:
        raise ConfigError.expected("--folds", "an int of at least 2", folds)
    return [SeedRun(seed, fold, out / f"seed-{seed}-fold-{fold}") for seed in seeds for fold in range(folds)]


def run_settings(run: SeedRun, folds: int | None, settings: Sequence[str]) -> list[str]:
    """The recipe's settings in this run."""
    fold = [] if run.fold is None else [f"data.folds={folds}", f"data.fold={run.fold}"]
    return [*settings, f"run.seed={run.seed}", *fold]


def pinned_store(recipe: Recipe) -> list[str]:
    """The setting that makes all runs of a group use the same prepared dataset.

    Empty if the recipe names one, or none exists yet.
    """
    data = recipe.data
    key = current_key(root_of(data) / STORE / data.dataset) if data.store is None else None
    return [] if key is None else [f"data.store={key}"]


def train_command(recipe: str, run: SeedRun, settings: Sequence[str]) -> list[str]:
    """The command of one run; it resumes an earlier run that was stopped."""
    program = [sys.executable, "-m", "ripe_mambaspike", "train", recipe]
    return [*program, "--out", str(run.folder), "--resume", "auto", "--set", *settings]


def finished_result(run: SeedRun, recipe: Recipe) -> TrainingResult | None:
    """The result of an earlier run of this recipe; None if there is none. Raises if the recipe differs."""
    result = read_result(run.folder)
    if result is None:
        return None
    path = run.folder / RECIPE_FILE
    saved = load_recipe(path)
    if differing := changed_fields(recipe, saved, IGNORED_FIELDS):
        changes = describe_changes(recipe, saved, differing)
        raise InputError(f"{path}: {changes}; that run has ended: use another --out", field=differing[0], path=path)
    return result
