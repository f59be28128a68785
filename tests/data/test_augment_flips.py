"""Polarity flip, horizontal flip and time reversal."""

import dataclasses

import pytest
import torch

from raising import raises
from ripe_mambaspike.data.augment import (
    HorizontalFlip,
    PolarityFlip,
    TimeReversal,
    batch_generator,
    flip_horizontal,
    flip_polarity,
    reverse_time,
)
from ripe_mambaspike.errors import ConfigError, InputError

TRANSFORMS = {
    "polarity": (PolarityFlip, flip_polarity),
    "horizontal": (HorizontalFlip, flip_horizontal),
    "time": (TimeReversal, reverse_time),
    "backwards": (
        lambda probability: TimeReversal(probability, swap_polarity=True),
        lambda x, chosen: reverse_time(x, chosen, swap_polarity=True),
    ),
}
transforms = pytest.mark.parametrize("name", TRANSFORMS)
SHAPES = [(5, 4, 2, 5, 7), (1, 3, 2, 34, 34), (3, 2, 2, 4, 3)]


def counts(*shape):
    return torch.randint(0, 9, shape).float()


def slow(name, x, chosen):
    """Count by count into its mirrored place."""
    out = torch.zeros_like(x)
    samples, steps, polarities, height, width = x.shape
    for b in range(samples):
        for t in range(steps):
            for p in range(polarities):
                for r in range(height):
                    for c in range(width):
                        place = [t, p, r, c]
                        if chosen[b]:
                            if name in ("time", "backwards"):
                                place[0] = steps - 1 - t
                            if name in ("polarity", "backwards"):
                                place[1] = 1 - p
                            if name == "horizontal":
                                place[3] = width - 1 - c
                        out[(b, *place)] = x[b, t, p, r, c]
    return out


@transforms
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_loop_over_counts(name, shape):
    x = counts(*shape) if shape[-1] < 30 else counts(*shape)[..., :3, :]
    chosen = torch.rand(len(x)) < 0.5
    for which in (chosen, ~chosen, torch.zeros_like(chosen), torch.ones_like(chosen)):
        assert torch.equal(TRANSFORMS[name][1](x, which), slow(name, x, which))


@transforms
def test_twice_is_the_identity_and_once_keeps_every_count(name):
    x = counts(6, 5, 2, 34, 34)
    flip = TRANSFORMS[name][1]
    chosen = torch.tensor([True, False, True, True, False, True])
    before = x.clone()
    once = flip(x, chosen)
    assert torch.equal(x, before)
    assert torch.equal(once.sum((1, 2, 3, 4)), x.sum((1, 2, 3, 4)))
    assert torch.equal(flip(once, chosen), x)
    assert torch.equal(once[~chosen], x[~chosen])
    assert (once[chosen] != x[chosen]).flatten(1).any(1).all()


def test_what_each_one_exchanges():
    x = counts(2, 5, 2, 6, 8)
    both = torch.ones(2, dtype=torch.bool)
    by_polarity, by_column, by_step = (
        (lambda v: v.sum((1, 3, 4))),
        (lambda v: v.sum((1, 2, 3))),
        (lambda v: v.sum((3, 4))),
    )
    assert torch.equal(by_polarity(flip_polarity(x, both)), by_polarity(x).flip(1))
    assert torch.equal(by_column(flip_horizontal(x, both)), by_column(x).flip(1))
    assert torch.equal(by_step(reverse_time(x, both)), by_step(x).flip(1))
    assert torch.equal(by_polarity(reverse_time(x, both)), by_polarity(x))
    assert torch.equal(by_step(reverse_time(x, both, swap_polarity=True)), by_step(x).flip(1).flip(2))


def test_one_step_has_no_order_but_has_polarities():
    x, both = counts(2, 1, 2, 4, 4), torch.ones(2, dtype=torch.bool)
    assert torch.equal(reverse_time(x, both), x)
    assert torch.equal(reverse_time(x, both, swap_polarity=True), flip_polarity(x, both))


def was_hit(given, x):
    return (given != x).flatten(1).any(1)


@transforms
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_each_sample_is_hit_with_its_probability(name, dtype):
    x = torch.arange(24.0).view(1, 3, 2, 1, 4).expand(4000, -1, -1, -1, -1).to(dtype)
    for probability in (0.1, 0.5, 0.9):
        given = TRANSFORMS[name][0](probability)(x, batch_generator(0, 0, 0))
        hit = was_hit(given, x)
        assert given.dtype == dtype
        assert torch.equal(given, TRANSFORMS[name][1](x, hit))
        assert abs(hit.double().mean().item() - probability) < 4 * (probability * (1 - probability) / 4000) ** 0.5


@transforms
def test_never_at_0_and_always_at_1(name):
    x = counts(200, 2, 2, 3, 3) + torch.arange(36.0).view(2, 2, 3, 3) * 10
    make, flip = TRANSFORMS[name]
    assert make(0)(x, batch_generator(0, 0, 0)) is x
    assert torch.equal(make(1)(x, batch_generator(0, 0, 0)), flip(x, torch.ones(200, dtype=torch.bool)))


@transforms
def test_draws_depend_on_the_generator_only(name):
    x = counts(64, 2, 2, 3, 4)
    transform = TRANSFORMS[name][0](0.5)
    state = torch.random.get_rng_state()
    given = transform(x, batch_generator(1, 2, 3))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(transform(x, batch_generator(1, 2, 3)), given)
    assert not torch.equal(transform(x, batch_generator(1, 2, 4)), given)


@pytest.mark.parametrize(
    ("make", "option"),
    [(PolarityFlip, "polarity_flip"), (HorizontalFlip, "horizontal_flip"), (TimeReversal, "time_reversal")],
)
@pytest.mark.parametrize("value", [1.3, -0.1, float("nan"), float("inf"), "0.5", True, None])
def test_a_bad_probability_is_named(make, option, value):
    with raises(ConfigError, option, mentions=("from 0 to 1", repr(value))):
        make(value)


def test_swap_polarity_is_true_or_false():
    with raises(ConfigError, "swap_polarity", mentions=("true or false", "got 1")):
        TimeReversal(0.5, swap_polarity=1)


@transforms
def test_clips_are_checked_even_when_nothing_is_drawn(name):
    with raises(InputError, "clips", mentions="torch.int64"):
        TRANSFORMS[name][0](0)(torch.zeros(2, 3, 2, 4, 4, dtype=torch.long), batch_generator(0, 0, 0))


def test_transforms_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PolarityFlip(0.5).probability = 0.7
