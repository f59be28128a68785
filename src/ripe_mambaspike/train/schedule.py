"""What changes on the way through a run: the learning rate and the sharpness of spikes. Epochs count from 0."""

import math

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.train.recipe import Recipe


def learning_rate(recipe: Recipe, epoch: int, steps_per_epoch: int, move: int | None = None) -> float:
    """The rate in an epoch: linear up from lr_min over the warm-up, then a cosine that ends in lr_min.

    It changes from epoch to epoch. A warm-up in iterations changes with every move (counted from 1 over the whole run):
    without one given, the rate is that of the epoch's last move.
    """
    _check_epoch(recipe, epoch)
    schedule = recipe.schedule
    warm, place, end = schedule.warmup_epochs, epoch + 1, schedule.epochs
    if schedule.warmup_steps:
        first, last = epoch * steps_per_epoch + 1, (epoch + 1) * steps_per_epoch
        if move is not None and not first - 1 <= move <= last:  # the last of the epoch before is where this one begins
            raise InputError(f"move is {move}; epoch {epoch} has the moves {first} to {last} of the run")
        warm, place, end = schedule.warmup_steps, last, schedule.epochs * steps_per_epoch
        if move is not None and move <= warm:
            place = move
    if place <= warm:
        share = place / warm
    else:
        share = (1 + math.cos(math.pi * (place - warm) / (end - warm))) / 2
    return recipe.optimizer.learning_rate * share + recipe.optimizer.min_learning_rate * (
        1 - share
    )  # exact at both ends


def sharpness(recipe: Recipe, epoch: int) -> float:
    """α of surrogate and relaxation: linear from the first epoch to the last."""
    _check_epoch(recipe, epoch)
    schedule = recipe.schedule
    share = epoch / (schedule.epochs - 1) if schedule.epochs > 1 else 0.0
    return schedule.sharpness_start * (1 - share) + schedule.sharpness_end * share


def steps_per_epoch(clips: int, recipe: Recipe, processes: int = 1) -> int:
    """How often the weights move in an epoch over so many clips; leftover clips and batches count."""
    for name, value in (("clips", clips), ("processes", processes)):
        if value < 1:
            raise InputError(f"{name} is {value}; at least 1 is wanted")
    batches = -(-clips // (recipe.schedule.batch_size * processes))
    return -(-batches // recipe.schedule.grad_accum_steps)


def _check_epoch(recipe: Recipe, epoch: int) -> None:
    if not 0 <= epoch < recipe.schedule.epochs:
        raise InputError(f"epoch is {epoch}; 0 to {recipe.schedule.epochs - 1} is wanted")
