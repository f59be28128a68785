"""Warnings for a run that does not learn: its accuracy is compared with always predicting the most common class.

Augmentation that changes labels, mixed-up folders or a wrong learning rate all give a network at chance level. So a run
whose training accuracy is still at chance after a third of its epochs gets a warning with the likely causes, and so
does a result that is no better than chance. A small dataset can be memorized even with wrong labels; then only the test
clips show it.
"""

import math

import numpy as np

from ripe_mambaspike.data.augment.settings import label_tables
from ripe_mambaspike.data.clip_cache import Indices
from ripe_mambaspike.data.training_data import TrainingData
from ripe_mambaspike.train.history import Row
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.schedule import steps_per_epoch

SIGNIFICANCE = 0.05  # largest p-value of an accuracy that counts as above chance
MIN_EPOCHS = 2
MIN_CLIPS = 16  # for a test of an accuracy
MIN_STEPS = 100  # of a whole run
MIN_EVENTS = 50.0  # per bin; bins with fewer show little
LABEL_CHANGING = ("horizontal_flip", "time_reversal", "polarity_flip")  # of the augmentation


def first_check_epoch(recipe: Recipe, clips: int, processes: int = 1) -> int:
    """The epoch, from 1, after which a run is checked: a third of all, after the warm-up and `data.first`."""
    schedule = recipe.schedule
    warm = schedule.warmup_epochs
    if schedule.warmup_steps:
        warm = math.ceil(schedule.warmup_steps / steps_per_epoch(clips, recipe, processes))
    first = schedule.first_epochs if recipe.data.first else 0
    return max(MIN_EPOCHS, math.ceil(schedule.epochs / 3), min(max(warm, first) + 1, schedule.epochs))


def chance_warning(recipe: Recipe, data: TrainingData, row: Row) -> str | None:
    """A warning with the likely causes if the epoch's training accuracy is no better than chance."""
    epoch, accuracy, labels = int(row["epoch"] or 0), row["train_top1"], data.train.labels
    if epoch < MIN_EPOCHS or accuracy is None:
        return None
    chance = commonest_share(labels, recipe, data.classes)
    if not is_at_chance(round(accuracy * len(labels)), len(labels), chance):
        return None
    what = f"training accuracy after epoch {epoch} of {recipe.schedule.epochs}"
    return _warning(what, accuracy, chance, likely_causes(recipe, data))


def result_warnings(recipe: Recipe, data: TrainingData, rows: list[Row], top1: float | None) -> list[str]:
    """Warnings about a result: if the last epoch's training accuracy, or else the test accuracy, is at chance."""
    if rows and (found := chance_warning(recipe, data, rows[-1])):
        return [found]
    if top1 is None:
        return []
    labels = data.test.labels
    chance = float(np.bincount(labels).max()) / len(labels)
    if not is_at_chance(round(top1 * len(labels)), len(labels), chance):
        return []
    causes = likely_causes(recipe, data)
    if len(rows) >= MIN_EPOCHS and (trained := rows[-1]["train_top1"]) is not None:
        causes = [f"too few training clips ({100 * trained:.1f} % of them right: they were memorized)", *causes]
    return [_warning("test accuracy", top1, chance, causes)]


def _warning(what: str, accuracy: float, chance: float, causes: list[str]) -> str:
    return (
        f"{what} is {100 * accuracy:.1f} %, not clearly above chance ({100 * chance:.1f} %, the most common class); "
        f"likely causes: {'; '.join(causes)}"
    )


def is_at_chance(right: int, count: int, chance: float) -> bool:
    """Whether `right` of `count` can be expected by chance: P(X ≥ right) is above SIGNIFICANCE.

    False if the test is not meaningful: with few clips, or if even all right could be expected by chance.
    """
    if count < MIN_CLIPS or chance**count > SIGNIFICANCE:
        return False
    if right <= count * chance:
        return True
    from scipy.special import bdtrc  # here: scipy is slow to import

    return bool(bdtrc(right - 1, count, chance) > SIGNIFICANCE)


def commonest_share(labels: Indices, recipe: Recipe, classes: tuple[str, ...]) -> float:
    """The share of the most common class among the augmented clips, after relabeling."""
    shares = np.bincount(labels, minlength=len(classes)) / len(labels)
    settings = recipe.augmentation
    tables = label_tables(settings, classes)
    for table, probability in ((tables.mirrored, settings.horizontal_flip), (tables.backwards, settings.time_reversal)):
        if table is not None:
            shares = (1 - probability) * shares + probability * shares[list(table)]  # a table is its own inverse
    return float(shares.max())


def likely_causes(recipe: Recipe, data: TrainingData) -> list[str]:
    """Likely causes of a run that does not learn, most likely first, with this run's values."""
    on = [(name, getattr(recipe.augmentation, name)) for name in LABEL_CHANGING]
    flips = ", ".join(f"augmentation.{name}={value:g}" for name, value in on if value)
    facts = data.describe()
    (height, width), (columns, rows) = facts["grid"], facts["sensor_size"]
    counts = np.array(data.store.index.clips.events, np.int64)[data.members["train"]]
    events = float(np.median(counts)) / recipe.data.time_steps
    found = [f"augmentation that changes what a clip shows ({flips})"] if flips else []
    if events < MIN_EVENTS:
        found.append(f"too few events per bin (a median clip has {events:.0f}: use fewer data.time_steps)")
    steps = recipe.schedule.epochs * steps_per_epoch(facts["train"], recipe)
    if steps < MIN_STEPS:
        found.insert(0, f"too few epochs (schedule.epochs={recipe.schedule.epochs} makes {steps} steps)")
    return [
        *found,
        "recordings in the wrong class's folder, or classes that look alike",
        f"a learning rate that is too high or too low (optimizer.learning_rate={recipe.optimizer.learning_rate:g})",
        f"a grid that hides what tells classes apart (data.grid {height}×{width} of a {rows}×{columns} sensor)",
    ]
