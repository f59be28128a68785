"""The schedule, each epoch by hand."""

import math
from itertools import pairwise

import pytest

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.train.recipe import OptimizerSettings, Recipe, ScheduleSettings
from ripe_mambaspike.train.recipes import load_recipe
from ripe_mambaspike.train.schedule import learning_rate, sharpness, steps_per_epoch


def plan(learning_rate=1.0, min_learning_rate=0.1, **schedule):
    schedule = {"warmup_epochs": 0, **schedule}
    return Recipe(
        optimizer=OptimizerSettings(learning_rate=learning_rate, min_learning_rate=min_learning_rate),
        schedule=ScheduleSettings(**schedule),
    )


def rates(recipe, steps=7):
    return [learning_rate(recipe, epoch, steps) for epoch in range(recipe.schedule.epochs)]


def test_every_epoch_by_hand():
    half = math.sqrt(0.5)
    cosine = [0.1 + 0.9 * 0.5 * (1 + c) for c in (half, 0, -half)]
    assert rates(plan(epochs=6, warmup_epochs=2)) == pytest.approx([0.55, 1.0, *cosine, 0.1])
    assert rates(plan(epochs=4)) == pytest.approx([*cosine, 0.1])


@pytest.mark.parametrize("name", ["dvsgesture", "cifar10dvs", "synthgesture", "nmnist-600"])
def test_up_and_down_with_exact_ends(name):
    recipe = load_recipe(name)
    warm, found = recipe.schedule.warmup_epochs, rates(recipe)
    assert found[warm - 1] == recipe.optimizer.learning_rate == max(found)
    assert found[-1] == recipe.optimizer.min_learning_rate == min(found)
    assert found[0] == pytest.approx(1e-6 + (1e-3 - 1e-6) / warm)
    assert all(a < b for a, b in pairwise(found[:warm]))
    assert all(a > b for a, b in pairwise(found[warm - 1 :]))


def test_short_runs():
    assert rates(plan(epochs=1)) == [0.1]  # the last epoch is the first
    assert rates(plan(epochs=1, warmup_epochs=1)) == [1.0]
    assert rates(plan(epochs=2, warmup_epochs=2)) == pytest.approx([0.55, 1.0])


def test_a_step_changes_nothing_when_the_warm_up_is_in_epochs():
    recipe = plan(epochs=6, warmup_epochs=2)
    assert {learning_rate(recipe, 1, 4, step) for step in range(5, 9)} == {1.0}


def test_a_warm_up_in_steps_by_hand():
    recipe = plan(epochs=4, warmup_steps=6)  # 4 steps an epoch: 16 in all, 10 after the warm-up
    found = [[learning_rate(recipe, epoch, 4, epoch * 4 + step) for step in (1, 2, 3, 4)] for epoch in range(4)]
    rise = [0.1 + 0.9 * step / 6 for step in range(1, 7)]
    second, third = (0.1 + 0.45 * (1 + math.cos(math.pi * done / 10)) for done in (2, 6))  # by steps 8 and 12
    assert found[0] == pytest.approx(rise[:4])
    assert found[1] == pytest.approx([*rise[4:], second, second])
    assert found[2] == pytest.approx([third] * 4)
    assert found[3] == [0.1] * 4
    assert rates(recipe, 4) == [epoch[-1] for epoch in found]  # without a step: that of the epoch's end
    assert found[1][1] == 1.0
    assert [learning_rate(recipe, epoch, 4, epoch * 4) for epoch in (0, 1)] == [0.1, found[0][3]]  # before any step


def test_a_warm_up_in_steps_that_is_longer_than_the_run():
    recipe = plan(epochs=2, warmup_steps=10)
    assert rates(recipe, 4) == pytest.approx([0.1 + 0.9 * 0.4, 0.1 + 0.9 * 0.8])
    assert rates(recipe, 5)[-1] == 1.0


def test_warmup_steps_take_precedence_over_epochs():
    assert rates(plan(epochs=4, warmup_epochs=3, warmup_steps=6), 4) == rates(plan(epochs=4, warmup_steps=6), 4)


def test_dailydvs200():
    recipe = load_recipe("dailydvs200")
    steps = steps_per_epoch(14_773, recipe)
    assert steps == 462
    assert learning_rate(recipe, 0, steps, 1) == pytest.approx(1e-6 + (5e-4 - 1e-6) / 2000)
    assert learning_rate(recipe, 4, steps, 2000) == 5e-4
    assert learning_rate(recipe, 4, steps, 2001) == learning_rate(recipe, 4, steps, 2310) < 5e-4
    assert learning_rate(recipe, 249, steps, 250 * steps) == 1e-6


def test_sharpness():
    recipe = plan(epochs=5, sharpness_start=2.0, sharpness_end=4.0)
    assert [sharpness(recipe, epoch) for epoch in range(5)] == [2.0, 2.5, 3.0, 3.5, 4.0]
    assert sharpness(plan(epochs=1), 0) == 2.0
    gesture = load_recipe("cifar10dvs")
    assert (sharpness(gesture, 0), sharpness(gesture, 299)) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("clips", "batch", "grad_accum_steps", "processes", "steps"),
    [
        (1, 32, 1, 1, 1),
        (32, 32, 1, 1, 1),
        (33, 32, 1, 1, 2),
        (1176, 32, 1, 1, 37),
        (60_000, 64, 2, 1, 469),
        (130, 64, 2, 1, 2),
        (128, 64, 2, 1, 1),
        (1176, 32, 1, 4, 10),
        (1176, 32, 3, 4, 4),
    ],
)
def test_steps_per_epoch(clips, batch, grad_accum_steps, processes, steps):
    recipe = plan(epochs=2, batch_size=batch, grad_accum_steps=grad_accum_steps)
    assert steps_per_epoch(clips, recipe, processes) == steps


def test_what_is_refused():
    recipe = plan(epochs=4, warmup_steps=6)
    for call, field, quoted in (
        (lambda: learning_rate(recipe, 4, 4), "epoch", "0 to 3, got 4"),
        (lambda: sharpness(recipe, -1), "epoch", "0 to 3, got -1"),
        (lambda: learning_rate(recipe, 1, 4, 3), "global_step", "5 to 8 in epoch 1, got 3"),
        (lambda: learning_rate(recipe, 1, 4, 9), "global_step", "5 to 8 in epoch 1, got 9"),
        (lambda: steps_per_epoch(0, recipe), "clips", "got 0"),
        (lambda: steps_per_epoch(3, recipe, 0), "processes", "got 0"),
    ):
        with raises(InputError, field=field, mentions=quoted):
            call()
