"""Finished runs from elsewhere, of `ripe train`, `ripe seeds` or a benchmark, taken over by a study."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.folders import atomic_folder
from ripe_mambaspike.models.accuracy import RESULT_FILE, read_result
from ripe_mambaspike.models.labels import BEST
from ripe_mambaspike.studies.plan import StudyPlan, StudyRun, canonical_recipe, recipe_hash
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipes import load_recipe, save_recipe
from ripe_mambaspike.train.run_folder import LOG_FILE, RECIPE_FILE, changed_fields
from ripe_mambaspike.train.seeds import IGNORED_FIELDS


def adopt_runs(plan: StudyPlan, folders: Sequence[Path]) -> list[StudyRun]:
    """Copy the finished runs below these folders that the plan needs and has not; returns them.

    A run is the same if its recipe is, with its data: checkpoints are left behind.
    """
    missing = {(run.key, run.seed): run for run in plan.distinct if not (run.folder / RESULT_FILE).exists()}
    adopted = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError.expected("reuse", "folders with runs", f"{str(folder)!r}, which is none")
        for source, recipe in _finished(folder):
            run = missing.get((recipe_hash(recipe), recipe.run.seed))
            if run is not None and not changed_fields(run.recipe, recipe, IGNORED_FIELDS):
                _copy(source, recipe, run.folder)
                del missing[run.key, run.seed]
                adopted.append(run)
    return adopted


def _finished(folder: Path) -> Iterator[tuple[Path, Recipe]]:
    """Folders of finished runs, with their recipes; those that cannot be read are passed over."""
    for path in sorted(folder.rglob(RESULT_FILE)):
        try:
            if read_result(path.parent) is not None and (path.parent / BEST).is_dir():
                yield path.parent, canonical_recipe(load_recipe(path.parent / RECIPE_FILE))
        except RipeError:
            continue


def _copy(source: Path, recipe: Recipe, target: Path) -> None:
    with atomic_folder(target) as folder:
        shutil.copytree(source / BEST, folder / BEST)
        for name in (LOG_FILE, RESULT_FILE):
            if (source / name).exists():
                shutil.copyfile(source / name, folder / name)
        save_recipe(recipe, folder / RECIPE_FILE)
