"""Settings that a recipe leaves to the recordings: the start, the time steps, the batch size and the epochs.

A recipe with a start may leave them open: `model.pretrained: auto`, and 0 for `data.time_steps`, `schedule.batch_size`
and `schedule.epochs`. They are chosen by what is known of the training recordings alone: class names, sensor, duration
and number. The run's recipe.yaml has the chosen values.
"""

import math
from dataclasses import replace
from typing import Any

from ripe_mambaspike.data.training_data import TrainingData
from ripe_mambaspike.errors import ConfigError, RipeError
from ripe_mambaspike.models.labels import find_checkpoint, read_labels
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.models.shipped import shipped_folder
from ripe_mambaspike.train.recipe import AUTO, Recipe

DIGITS, GESTURES = "nmnist-simulated", "gestures-simulated"  # the starts that `auto` chooses from
MAX_DIGIT_SIDE = 48  # of a sensor that the digits are nearer to: theirs has 34
MAX_DIGIT_US = 600_000  # and of recordings that are nearer to theirs, of 310 ms
MAX_BATCH = 8
BATCHES_PER_EPOCH = 6  # at least, where there are recordings enough
MIN_BATCH = 4
STEPS = 240  # of a run, about
EPOCHS = (12, 120)  # fewest and most


def choose_start(data: TrainingData) -> str:
    """The shipped network with the recordings' class names, or else the one with the nearest sensor and duration."""
    for name in (DIGITS, GESTURES):
        folder = shipped_folder(name)
        assert folder is not None
        if set(read_labels(folder).classes) == set(data.classes):
            return name
    small = max(data.store.sensor_size) <= MAX_DIGIT_SIDE and data.duration_us <= MAX_DIGIT_US
    return DIGITS if small else GESTURES


def choose_batch_size(clips: int) -> int:
    """At least six batches an epoch, of 4 to 8 clips; fewer clips are one batch."""
    return min(clips, max(MIN_BATCH, min(MAX_BATCH, clips // BATCHES_PER_EPOCH)))


def choose_epochs(clips: int, batch_size: int) -> int:
    """So many that the run has about 240 steps: from 12 to 120."""
    fewest, most = EPOCHS
    return max(fewest, min(most, math.ceil(STEPS / math.ceil(clips / batch_size))))


def open_fields(recipe: Recipe) -> list[str]:
    """The fields that a recipe leaves to the recordings."""
    given: dict[str, Any] = {
        "model.pretrained": recipe.model.pretrained != AUTO,
        "data.time_steps": recipe.data.time_steps,
        "schedule.batch_size": recipe.schedule.batch_size,
        "schedule.epochs": recipe.schedule.epochs,
    }
    return [name for name, value in given.items() if not value]


def fit_recipe(recipe: Recipe, data: TrainingData) -> Recipe:
    """The recipe with values for the fields that it leaves to the recordings."""
    model, settings, schedule = recipe.model, recipe.data, recipe.schedule
    if model.pretrained == AUTO:
        model = replace(model, pretrained=choose_start(data))
    if not settings.time_steps:
        settings = replace(settings, time_steps=_start_steps(model.pretrained))
    clips = data.describe()["train"]
    if not schedule.batch_size:
        schedule = replace(schedule, batch_size=choose_batch_size(clips))
    if not schedule.epochs:
        schedule = replace(schedule, epochs=choose_epochs(clips, schedule.batch_size))
    return replace(recipe, model=model, data=settings, schedule=schedule)


def describe_fit(recipe: Recipe, fitted: Recipe) -> str:
    """The chosen values as a log line."""
    values = {
        "model.pretrained": fitted.model.pretrained,
        "data.time_steps": fitted.data.time_steps,
        "schedule.batch_size": fitted.schedule.batch_size,
        "schedule.epochs": fitted.schedule.epochs,
    }
    return "chosen by the recordings: " + ", ".join(f"{name}={values[name]}" for name in open_fields(recipe))


def _start_steps(name: str | None) -> int:
    try:
        return from_pretrained(find_checkpoint(name or "")).config.time_steps
    except RipeError as error:
        raise ConfigError(f"model.pretrained: {error}", field="model.pretrained", path=error.path) from error
