"""What a recipe's values must be beyond their types."""

import re
from typing import Any

from ripe_mambaspike.data.sets.registry import datasets
from ripe_mambaspike.data.store import KEY
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.config import MAX_SIDE, MAX_TIME_STEPS, MIN_SIDE
from ripe_mambaspike.models.registry import list_models, model_config
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipe_fields import kinds_of, leaves, nearest, read, show

NAME = re.compile(r"\w[\w.+-]{0,99}")  # it names a folder
FROM_DATA = ("num_classes", "time_steps", "in_size", "form")  # of a network, which a recipe does not set
LARGEST_SEED = 2**63 - 1
LEAST = {
    "data.time_steps": 1,
    "data.folds": 0,
    "data.fold": 0,
    "data.num_workers": 0,
    "optimizer.min_learning_rate": 0,
    "optimizer.tdm_lr_scale": 0,
    "optimizer.weight_decay": 0,
    "loss.spread": 0,
    "loss.consistency": 0,
    "loss.rates": 0,
    "schedule.epochs": 1,
    "schedule.batch_size": 1,
    "schedule.grad_accum_steps": 1,
    "schedule.warmup_epochs": 0,
    "schedule.warmup_steps": 0,
    "schedule.first_epochs": 0,
    "run.seed": 0,
    "run.validate_every": 1,
    "run.recalibrate_batches": 1,
    "run.ema_decay": 0,
    "run.checkpoint_minutes": 0,
    "run.threads": 0,
}
MAX_THREADS = 1024
ABOVE_ZERO = ("optimizer.clip_grad_norm", "schedule.sharpness_start", "schedule.sharpness_end")


def check(recipe: Recipe) -> None:
    """Raise a sentence with the field, its value and what is wanted, unless a run can be made from this."""
    values: dict[str, Any] = {}
    for path, kind, value in leaves(recipe):
        values[path] = read(kind, value, path)
    for path, least in LEAST.items():
        if values[path] < least:
            kind = "whole number" if isinstance(values[path], int) else "number"
            _refuse(path, values[path], f"a {kind} of at least {least}")
    for path in ABOVE_ZERO:
        if not values[path] > 0:
            _refuse(path, values[path], "a number above 0")
    if not NAME.fullmatch(recipe.name):
        _refuse("name", recipe.name, "letters, digits, dots, dashes and underscores (it names the run's folder)")
    _check_data(recipe)
    _check_model(recipe)
    _check_numbers(recipe)


def _refuse(path: str, value: Any, wanted: str) -> None:
    raise ConfigError(f"{path} is {show(value)}; {wanted} is wanted")


def _check_data(recipe: Recipe) -> None:
    data = recipe.data
    most_steps, most_side = MAX_TIME_STEPS, MAX_SIDE
    known = list(datasets())
    if data.dataset not in known:
        raise ConfigError(
            f"data.dataset is {show(data.dataset)}{nearest(data.dataset, known)} (one of {', '.join(known)} is wanted)"
        )
    if data.time_steps > most_steps:
        _refuse("data.time_steps", data.time_steps, f"a whole number from 1 to {most_steps}")
    if data.grid is not None and not all(MIN_SIDE <= side <= most_side for side in data.grid):
        _refuse("data.grid", list(data.grid), f"one side or [height, width] from {MIN_SIDE} to {most_side}")
    if data.store is not None and not KEY.fullmatch(data.store):
        said = "the key of a prepared set (see ripe data list) or null"
        raise ConfigError(f"data.store: expected {said}, got {show(data.store)}", field="data.store")
    for word in data.extra:
        name, _, root = word.partition("=")
        if name not in known or not root:
            _refuse("data.extra", word, f"SET=ROOT with one of the sets {', '.join(known)}")
    if data.folds == 1:
        _refuse("data.folds", 1, "0 (the set's own split) or at least 2")
    if data.fold >= max(data.folds, 1):
        _refuse(
            "data.fold", data.fold, f"0 to {data.folds - 1}, of {data.folds} folds," if data.folds else "0 (no folds)"
        )


def _check_model(recipe: Recipe) -> None:
    name, given = recipe.model.name, recipe.model.fields
    if name not in list_models():
        hint = nearest(name, list_models())
        raise ConfigError(f"model.name is {show(name)}{hint} (one of {', '.join(list_models())} is wanted)")
    if fixed := [field for field in FROM_DATA if field in given]:
        raise ConfigError(f"model.fields sets {fixed[0]}, which comes from the data; another field is wanted there")
    try:
        sizes = {} if recipe.data.grid is None else {"in_size": recipe.data.grid}
        model_config(name, **given, time_steps=recipe.data.time_steps, **sizes)
    except ConfigError as error:
        raise ConfigError(f"model.fields: {error}") from error


def read_network_fields(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The fields set for a network, with numbers such as 1e-1, a text in YAML, as numbers."""
    if name not in list_models():
        return given
    kinds = kinds_of(type(model_config(name)))
    return {
        field: read(float, value, f"model.fields.{field}") if kinds.get(field) is float else value
        for field, value in given.items()
    }


def _check_numbers(recipe: Recipe) -> None:
    rates, schedule, run = recipe.optimizer, recipe.schedule, recipe.run
    if rates.learning_rate < rates.min_learning_rate:
        _refuse(
            "optimizer.learning_rate",
            rates.learning_rate,
            f"a number of at least optimizer.min_learning_rate ({rates.min_learning_rate})",
        )
    if not schedule.warmup_steps and schedule.warmup_epochs > schedule.epochs:
        _refuse("schedule.warmup_epochs", schedule.warmup_epochs, f"at most schedule.epochs ({schedule.epochs})")
    if recipe.data.first and schedule.first_epochs >= schedule.epochs:
        _refuse("schedule.first_epochs", schedule.first_epochs, f"fewer than schedule.epochs ({schedule.epochs})")
    if not run.ema_decay < 1:
        _refuse("run.ema_decay", run.ema_decay, "a number from 0 up to but not 1")
    if run.seed > LARGEST_SEED:
        _refuse("run.seed", run.seed, f"a whole number from 0 to {LARGEST_SEED}")
    if run.threads > MAX_THREADS:
        said = f"run.threads: expected an int from 0 to {MAX_THREADS}, got {run.threads}"
        raise ConfigError(said, field="run.threads")
