"""Schedules of a run: the learning rate and the sharpness of spikes. Epochs count from 0."""

import math

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.train.recipe import Recipe


def learning_rate(recipe: Recipe, epoch: int, steps_per_epoch: int, global_step: int | None = None) -> float:
    """The learning rate in an epoch: linear up from the minimum over the warm-up, then a cosine down to the minimum.

    It changes from epoch to epoch. A warm-up in steps changes with every step (counted from 1 over the whole run):
    without a `global_step`, the rate is that of the epoch's last step.
    """
    _check_epoch(recipe, epoch)
    schedule, optimizer = recipe.schedule, recipe.optimizer
    warm, now, end = schedule.warmup_epochs, epoch + 1, schedule.epochs
    if schedule.warmup_steps:
        first, last = epoch * steps_per_epoch + 1, (epoch + 1) * steps_per_epoch
        if global_step is not None and not first - 1 <= global_step <= last:  # the last of the epoch before begins it
            raise InputError.expected("global_step", f"{first} to {last} in epoch {epoch}", global_step)
        warm, now, end = schedule.warmup_steps, last, schedule.epochs * steps_per_epoch
        if global_step is not None and global_step <= warm:
            now = global_step
    share = now / warm if now <= warm else (1 + math.cos(math.pi * (now - warm) / (end - warm))) / 2
    return optimizer.learning_rate * share + optimizer.min_learning_rate * (1 - share)  # exact at both ends


def sharpness(recipe: Recipe, epoch: int) -> float:
    """α of surrogate gradient and relaxation: linear from the first epoch to the last."""
    _check_epoch(recipe, epoch)
    schedule = recipe.schedule
    share = epoch / (schedule.epochs - 1) if schedule.epochs > 1 else 0.0
    return schedule.sharpness_start * (1 - share) + schedule.sharpness_end * share


def batches_per_epoch(clips: int, recipe: Recipe, processes: int = 1) -> int:
    """Batches per epoch over all processes; the last one may be smaller."""
    for name, value in (("clips", clips), ("processes", processes)):
        if value < 1:
            raise InputError.expected(name, "an int of at least 1", value)
    return -(-clips // (recipe.schedule.batch_size * processes))


def steps_per_epoch(clips: int, recipe: Recipe, processes: int = 1) -> int:
    """Optimizer steps per epoch."""
    return -(-batches_per_epoch(clips, recipe, processes) // recipe.schedule.grad_accum_steps)


def _check_epoch(recipe: Recipe, epoch: int) -> None:
    if not 0 <= epoch < recipe.schedule.epochs:
        raise InputError.expected("epoch", f"0 to {recipe.schedule.epochs - 1}", epoch)
