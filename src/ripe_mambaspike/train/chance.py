"""Whether a run learns at all: its accuracy against what the commonest class alone would give.

Augmentation that changes labels, mixed-up folders or a wrong learning rate all end in a network that is trained to the
last epoch and knows nothing. So a run whose training accuracy is still at chance after a third of its epochs is warned
of, with the likely causes, and so is a result that is no better than chance. A small set can be learned by heart even
with wrong labels; then the test part alone tells.
"""

import math

import numpy as np

from ripe_mambaspike.data.augment.settings import label_tables
from ripe_mambaspike.data.clip_cache import Numbers
from ripe_mambaspike.data.clips import TrainingData
from ripe_mambaspike.train.history import Row
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.schedule import steps_per_epoch
from ripe_mambaspike.train.statistics import incomplete_beta

SIGNIFICANCE = 0.05  # how likely chance alone may reach an accuracy that counts as above it
MIN_EPOCHS = 2
MIN_CLIPS = 16  # that an accuracy is of; with fewer, luck and learning look the same
FEW_STEPS = 100  # of a whole run
FEW_EVENTS = 50.0  # a bin; below, a bin shows little
CHANGING = ("horizontal_flip", "time_reversal", "polarity_flip")  # of the augmentation: what can change a label


def first_check(recipe: Recipe, clips: int, processes: int = 1) -> int:
    """The epoch, from 1, after which a run is looked at: a third of all, behind the warm-up and the classes first."""
    schedule = recipe.schedule
    warm = schedule.warmup_epochs
    if schedule.warmup_steps:
        warm = math.ceil(schedule.warmup_steps / steps_per_epoch(clips, recipe, processes))
    alone = schedule.first_epochs if recipe.data.first else 0
    return max(MIN_EPOCHS, math.ceil(schedule.epochs / 3), min(max(warm, alone) + 1, schedule.epochs))


def chance_warning(recipe: Recipe, data: TrainingData, row: Row) -> str | None:
    """A sentence where the epoch's training accuracy is no better than chance, with the likely causes."""
    epoch, accuracy, labels = int(row["epoch"] or 0), row["train_top1"], data.train.labels
    if epoch < MIN_EPOCHS or accuracy is None:
        return None
    chance = commonest_share(labels, recipe, data.classes)
    if not is_at_chance(round(accuracy * len(labels)), len(labels), chance):
        return None
    where = f"training accuracy after epoch {epoch} of {recipe.schedule.epochs}"
    return _sentence(where, accuracy, chance, causes(recipe, data))


def result_warnings(recipe: Recipe, data: TrainingData, rows: list[Row], top1: float) -> list[str]:
    """What a reader of the result has to know: whether the last epoch, or else the test accuracy, is at chance."""
    if rows and (found := chance_warning(recipe, data, rows[-1])):
        return [found]
    labels = data.test.labels
    chance = float(np.bincount(labels).max()) / len(labels)
    if not is_at_chance(round(top1 * len(labels)), len(labels), chance):
        return []
    likely = causes(recipe, data)
    if len(rows) >= MIN_EPOCHS and (trained := rows[-1]["train_top1"]) is not None:
        by_heart = f"{100 * trained:.1f} % of them right, so they were learned by heart"
        likely = [f"too few training clips ({by_heart})", *likely]
    return [_sentence("test accuracy", top1, chance, likely)]


def _sentence(what: str, accuracy: float, chance: float, likely: list[str]) -> str:
    return (
        f"{what} is {100 * accuracy:.1f} %, not clearly above chance ({100 * chance:.1f} %, the commonest class); "
        f"likely causes: {'; '.join(likely)}"
    )


def is_at_chance(right: int, count: int, chance: float) -> bool:
    """Whether so many right of `count` are no surprise at the rate of chance: P(X ≥ right) above SIGNIFICANCE.

    Never where even all of them right would be none, or where clips are few: then nothing can be said.
    """
    if count < MIN_CLIPS or chance**count > SIGNIFICANCE:
        return False
    if right <= count * chance:
        return True
    return incomplete_beta(right, count - right + 1, chance) > SIGNIFICANCE  # the upper tail of the binomial


def commonest_share(labels: Numbers, recipe: Recipe, classes: tuple[str, ...]) -> float:
    """The share of the commonest class among the clips as they are shown, after relabelling."""
    shares = np.bincount(labels, minlength=len(classes)) / len(labels)
    settings = recipe.augmentation
    tables = label_tables(settings, classes)
    for table, probability in ((tables.mirrored, settings.horizontal_flip), (tables.backwards, settings.time_reversal)):
        if table is not None:
            shares = (1 - probability) * shares + probability * shares[list(table)]  # a table is its own inverse
    return float(shares.max())


def causes(recipe: Recipe, data: TrainingData) -> list[str]:
    """Why a run may not learn, the likeliest first, with the values of this one."""
    on = [f"augmentation.{name}={getattr(recipe.augmentation, name):g}" for name in CHANGING]
    on = [field for field in on if not field.endswith("=0")]
    seen = data.describe()
    (height, width), (across, down) = seen["grid"], seen["sensor_size"]
    events = _events_a_bin(recipe, data)
    found = [f"augmentation that changes what a clip shows ({', '.join(on)})"] if on else []
    if events < FEW_EVENTS:
        found.append(f"too few events a bin (a median clip has {events:.0f}: fewer data.time_steps)")
    steps = recipe.schedule.epochs * steps_per_epoch(seen["train"], recipe)
    if steps < FEW_STEPS:
        found.insert(0, f"too few epochs (schedule.epochs={recipe.schedule.epochs} makes {steps} steps)")
    return [
        *found,
        "recordings in the wrong class's folder, or classes that look alike",
        f"a learning rate that is too high or too low (optimizer.learning_rate={recipe.optimizer.learning_rate:g})",
        f"a grid that hides what tells classes apart (data.grid {height}×{width} of a {down}×{across} sensor)",
    ]


def _events_a_bin(recipe: Recipe, data: TrainingData) -> float:
    """Of the median training clip."""
    clips = data.store.index.clips
    counts = np.array(clips.events, np.int64)[data.members["train"]]
    return float(np.median(counts)) / recipe.data.time_steps
