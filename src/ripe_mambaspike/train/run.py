"""`train`: the function behind `ripe train`."""

from collections.abc import Callable
from pathlib import Path

from ripe_mambaspike.data.own_folder import prepare_own_folder
from ripe_mambaspike.data.settings import describe_grid
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.models.accuracy import TrainingResult, read_result
from ripe_mambaspike.train.callback import Callback, SilentCallback
from ripe_mambaspike.train.checkpoint import last_checkpoint
from ripe_mambaspike.train.distributed import SINGLE_PROCESS, Processes
from ripe_mambaspike.train.fit import describe_fit, open_fields
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipes import check_recipe, load_recipe
from ripe_mambaspike.train.run_folder import (
    CHECKPOINTS,
    RECIPE_FILE,
    RUN_FILES,
    check_same,
    chosen_folder,
    lock_folder,
    with_checksum_of,
    with_choices_of,
    with_protocol,
    with_protocol_of,
    with_store,
)
from ripe_mambaspike.train.threads import run_threads
from ripe_mambaspike.train.training_run import TrainingRun


def train(
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    callback: Callback | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
    processes: Processes = SINGLE_PROCESS,
    save_seconds: float = 0.0,
) -> TrainingResult:
    """Train by a recipe, select a network on validation clips, and test it once.

    Args:
        recipe: a `Recipe`, the name of a shipped recipe (`list_recipes`), or a .yaml file
        out: the run's folder, which one run at a time uses; by default the next of runs/NAME-1, runs/NAME-2, … or, to
            resume, that of the newest run of this name that has not ended, or of the run whose recipe.yaml was given
        resume: continue the run in that folder, where there is one; a run that has ended returns its result
        callback: is called after every step and epoch
        stop_requested: is asked after every step; when true, the state is saved and `TrainingStopped` raised
        processes: the processes of a run that several share (`torchrun`)
        save_seconds: an epoch that is not validated and ends sooner after the last checkpoint writes none
    """
    given = recipe
    if isinstance(recipe, Recipe):
        check_recipe(recipe)
    else:
        recipe = load_recipe(recipe)
    callback = callback or SilentCallback()
    if out is None:
        with chosen_folder(None, recipe, given, resume, processes) as chosen:
            callback.on_message(f"run folder {chosen}")
            return train(
                recipe, chosen, resume=resume, callback=callback, stop_requested=stop_requested, processes=processes,
                save_seconds=save_seconds,
            )  # fmt: skip
    folder = Path(out)
    with lock_folder(folder, processes), run_threads(recipe.run.threads):
        begun = any((folder / name).exists() for name in RUN_FILES)
        if begun and not resume:
            hint = "use --resume auto to continue it, or another --out"
            raise DataError.expected("folder", "an empty one", "one with a run", path=folder, hint=hint)
        if begun and not (folder / RECIPE_FILE).exists():  # with another recipe it would be another run
            expected, hint = f"the {RECIPE_FILE} of the run in this folder", "put it back, or use another --out"
            raise DataError.expected("folder", expected, "none", path=folder, hint=hint)
        if (folder / RECIPE_FILE).exists():
            saved = load_recipe(folder / RECIPE_FILE)
            recipe = with_checksum_of(with_protocol_of(with_choices_of(recipe, saved), saved), saved)
            check_same(recipe, saved, folder)
            if (result := read_result(folder)) is not None:
                callback.on_message(f"{folder}: the run has already finished; this is its result")
                return result
            store = recipe.data.store or saved.data.store
            if store is None and (found := last_checkpoint(folder / CHECKPOINTS)) is not None:
                store = found.document.store
            recipe = with_store(recipe, store)
        else:
            recipe = with_protocol(recipe)
        processes.wait()  # all have checked the folder before one writes there
        if recipe.data.prepare and recipe.data.store is None and processes.is_first:
            for line in prepare_own_folder(recipe.data):
                callback.on_message(line)
        processes.wait()
        run = TrainingRun(
            recipe, folder, callback, stop_requested, processes=processes, save_seconds=save_seconds
        )  # fmt: skip
        if recipe.data.grid is None:
            callback.on_message(describe_grid(run.recipe.data, run.data.store.sensor_size))
        if open_fields(recipe):
            callback.on_message(describe_fit(recipe, run.recipe))
        try:
            if resume and run.resume():
                callback.on_message(run.describe_position())
            elif begun:
                callback.on_message(f"{folder}: the run has no checkpoint; starting at epoch 1")
            processes.wait()  # all have read the checkpoint before another is written
            return run.run()
        finally:
            run.trainer.close()
