"""The folder of a run: locked by one run at a time, cleaned of temporary files, with the recipe of the run."""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ripe_mambaspike.data.training_data import with_nothing_held_out
from ripe_mambaspike.errors import MAX_VALUE_CHARS, ConfigError, DataError, one_line
from ripe_mambaspike.files import locked, make_folder, remove_leftovers, write_file
from ripe_mambaspike.models.accuracy import RESULT_FILE, TrainingResult
from ripe_mambaspike.models.labels import BEST
from ripe_mambaspike.train.distributed import SINGLE_PROCESS, Processes
from ripe_mambaspike.train.recipe import AUTO, RESUMABLE_FIELDS, Recipe
from ripe_mambaspike.train.recipes import difference, leaf_values
from ripe_mambaspike.yaml_text import yaml_value

LOG = logging.getLogger("ripe_mambaspike")
RECIPE_FILE, LOG_FILE, LOCK_FILE, CHECKPOINTS = "recipe.yaml", "log.csv", ".lock", "checkpoints"
RUN_FILES = (RECIPE_FILE, CHECKPOINTS, RESULT_FILE, BEST)  # a folder with one of them has a run
RUNS = Path("runs")
MAX_CHANGES_SHOWN = 3
WRITTEN_FILES = {  # folders in that of a run, and what is written there
    ".": r"recipe\.yaml|log\.csv|result\.json|report\.html|best|last",
    "checkpoints": r"step-\d{9}-\d{9}\.safetensors",
    "best": r"config\.json|model\.safetensors|labels\.json",
    "last": r"config\.json|model\.safetensors|labels\.json",
}


@contextmanager
def lock_folder(folder: Path, processes: Processes) -> Iterator[None]:
    """Create the folder and lock it against other runs while inside; temporary files of killed runs are removed.

    Rank 0 holds the lock; the other processes enter when it does. A read-only folder is not locked: a finished run can
    be read there, and any other fails to write.
    """
    try:
        make_folder(folder)
    except OSError as error:
        raise DataError.expected("folder", "one that can be made", error, path=folder) from error
    if processes.is_first and os.access(folder, os.W_OK):
        with locked(folder / LOCK_FILE, f"another run in {folder}"):
            for inner, names in WRITTEN_FILES.items():
                for path in remove_leftovers(folder / inner, names):
                    LOG.info(f"{path}: removed a temporary file of a killed run")
            processes.wait()
            yield
    else:
        processes.wait()
        yield


@contextmanager
def chosen_folder(
    out: Path | None, recipe: Recipe, given: str | Path | Recipe, resume: bool, processes: Processes = SINGLE_PROCESS
) -> Iterator[Path]:
    """The folder of a run, if `out` names none; `recipe` is the one that was `given` by its name, file or value.

    A new run has the next of runs/NAME-1, runs/NAME-2, …, which is made here, so that two processes never share one; it
    is removed again if an error leaves it empty. To resume by the recipe that a run saved, it is that run's folder;
    otherwise that of the newest run of this name that has not ended.
    """
    if out is not None:
        yield out
        return
    if resume and not isinstance(given, Recipe) and (path := Path(given)).name == RECIPE_FILE:
        saved_by_run = recipe.data.store is not None or (path.parent / CHECKPOINTS).exists()
        if saved_by_run and path.is_file():
            yield path.parent
            return
    runs = numbered_runs(recipe.name)
    if resume and runs:
        yield _newest_unfinished(recipe.name, runs)
        return
    processes.wait()  # all have looked before one makes a folder
    number = processes.max(_make_next(recipe.name, max(runs, default=0) + 1) if processes.is_first else 0)
    folder = RUNS / f"{recipe.name}-{number}"
    try:
        yield folder
    except BaseException:
        if processes.is_first:
            with suppress(OSError):  # something was written there
                folder.rmdir()
        raise


def numbered_runs(name: str) -> dict[int, Path]:
    """The folders runs/NAME-N by number; 0 is runs/NAME, as earlier versions called it."""
    pattern = re.compile(rf"{re.escape(name)}(?:-([1-9]\d{{0,8}}))?")
    found = [(match, path) for path in RUNS.glob("*") if (match := pattern.fullmatch(path.name))]
    return {int(match[1] or 0): path for match, path in sorted(found, key=lambda one: int(one[0][1] or 0))}


def _newest_unfinished(name: str, runs: Mapping[int, Path]) -> Path:
    begun = [path for path in runs.values() if (path / RECIPE_FILE).exists()]
    unfinished = [path for path in begun if not (path / RESULT_FILE).exists()]
    if not unfinished:
        got = f"{len(begun)} that have ended, the newest is {begun[-1]}" if begun else "none that has begun"
        hint = "leave --resume out to start another, or name one with --out"
        raise DataError.expected("resume", f"a run of {name} in {RUNS} that has not ended", got, hint=hint)
    return unfinished[-1]


def _make_next(name: str, number: int) -> int:
    """Make the folder of the first free number; returns the number."""
    while True:
        try:
            make_folder(RUNS)
            (RUNS / f"{name}-{number}").mkdir()
        except FileExistsError as error:
            if not RUNS.is_dir():
                raise DataError.expected("folder", "one that can be made", error, path=RUNS) from error
            number += 1
        except OSError as error:
            raise DataError.expected("folder", "one that can be made", error, path=RUNS / f"{name}-{number}") from error
        else:
            return number


def with_store(recipe: Recipe, key: str | None) -> Recipe:
    """The recipe with this preparation of its dataset."""
    return replace(recipe, data=replace(recipe.data, store=key))


def with_choices_of(recipe: Recipe, saved: Recipe) -> Recipe:
    """The recipe with the saved values of all that it leaves to the data, so that the two can be compared."""
    data, schedule, model = recipe.data, recipe.schedule, recipe.model
    grid = saved.data.grid if data.grid is None else data.grid
    data = replace(data, grid=grid, time_steps=data.time_steps or saved.data.time_steps)
    epochs = schedule.epochs or saved.schedule.epochs
    schedule = replace(schedule, epochs=epochs, batch_size=schedule.batch_size or saved.schedule.batch_size)
    if model.pretrained == AUTO:
        model = replace(model, pretrained=saved.model.pretrained)
    return replace(recipe, data=data, schedule=schedule, model=model)


def with_protocol(recipe: Recipe) -> Recipe:
    """The recipe of a new run: by the paper protocol nothing is held out, and its recipe says so."""
    if recipe.run.protocol != "paper":
        return recipe
    return replace(recipe, data=with_nothing_held_out(recipe.data))


def with_protocol_of(recipe: Recipe, saved: Recipe) -> Recipe:
    """The recipe as the saved run takes the paper protocol: an earlier version held validation clips out by it."""
    if not (recipe.run.protocol == saved.run.protocol == "paper" and recipe.data.validation):
        return recipe
    return replace(recipe, data=replace(recipe.data, validation=saved.data.validation))


def with_checksum_of(recipe: Recipe, saved: Recipe) -> Recipe:
    """The recipe with the saved checksum of `model.pretrained` if it has none: the run goes on from the same start."""
    if recipe.model.pretrained_checksum is not None:
        return recipe
    return replace(recipe, model=replace(recipe.model, pretrained_checksum=saved.model.pretrained_checksum))


def changed_fields(given: Recipe, saved: Recipe, ignored: tuple[str, ...] = RESUMABLE_FIELDS) -> list[str]:
    """The fields in which a recipe differs from the one that a run was saved with."""
    given = with_protocol_of(with_choices_of(given, saved), saved)
    if None in (given.data.store, saved.data.store):  # None means the store that the run started with
        given, saved = with_store(given, None), with_store(saved, None)
    given = with_checksum_of(given, saved)
    return [name for name in difference(given, saved) if name not in ignored]


def describe_changes(given: Recipe, saved: Recipe, differing: Sequence[str]) -> str:
    """ "field: expected X, got Y" of the first few fields in which a recipe differs from the saved one."""
    expected, got = leaf_values(saved), leaf_values(given)
    shown = [
        f"{name}: expected {_shown(expected, name)}, got {_shown(got, name)}" for name in differing[:MAX_CHANGES_SHOWN]
    ]
    left_out = len(differing) - len(shown)
    return "; ".join(shown) + (f"; and {left_out} more" if left_out else "")


def _shown(values: Mapping[str, Any], name: str) -> str:
    return one_line(yaml_value(values[name]), MAX_VALUE_CHARS) if name in values else "none"


def check_same(given: Recipe, saved: Recipe, folder: Path) -> None:
    """Raise unless a run can be resumed with this recipe."""
    if differing := changed_fields(given, saved):
        path = folder / RECIPE_FILE
        hint = f"ripe train {path} --resume continues that run, another --out starts a new one"
        changes = describe_changes(given, saved, differing)
        raise ConfigError(f"{path}: {changes}; {hint}", field=differing[0], path=path)


def write_result(folder: Path, result: TrainingResult) -> None:
    text = json.dumps(result.to_dict(), indent=1, ensure_ascii=False) + "\n"
    write_file(folder / RESULT_FILE, text.encode(), DataError)
