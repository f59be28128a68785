"""NDA: what is drawn, how often, how strong, and that each sample gets what was drawn for it."""

import math

import pytest
import torch

from raising import raises
from ripe_mambaspike.data.augment import (
    NDA,
    OPERATIONS,
    affine_transform,
    apply_draw,
    batch_generator,
    cutout,
    roll,
    rotations,
    shears,
    temporal_cutout,
)
from ripe_mambaspike.errors import ConfigError, InputError

FULL = NDA(operations=1, magnitude=1.0, roll_cap=0.25, cutout_cap=0.25)
MANY = 8000


def counts(*shape):
    return torch.randint(1, 9, shape).float()


def drawn(nda, shape=(16, 40, 24), samples=MANY, index=0):
    return nda.draw(samples, *shape, batch_generator(0, 0, index))


def of(draw, name):
    return draw.operation == OPERATIONS.index(name)


def test_the_eight_operations_are_equally_likely():
    numbers = torch.bincount(drawn(FULL).operation, minlength=8)
    assert len(numbers) == len(OPERATIONS) == 8
    chi_square = ((numbers - MANY / 8) ** 2 / (MANY / 8)).sum().item()
    assert chi_square < 24.3  # seven degrees of freedom, one in a thousand


@pytest.mark.parametrize("nda", [FULL, NDA(2, 0.3), NDA(2, 0.5), NDA(2, 0.2, 0.15, 0.15), NDA(2, 0.3, 0.15, 0.20)])
@pytest.mark.parametrize("shape", [(16, 128, 128), (10, 34, 34), (10, 40, 24), (4, 9, 30)], ids=str)
def test_whole_bounds_are_reached_and_never_passed(nda, shape):
    steps, height, width = shape
    draw = drawn(nda, shape)
    for name, shift, size in (("roll_x", draw.shift_x, width), ("roll_y", draw.shift_y, height)):
        most = math.floor(nda.roll_cap * size * nda.magnitude)
        assert set(shift[of(draw, name)].tolist()) == set(range(-most, most + 1))
    most = min(math.floor(nda.cutout_cap * height * nda.magnitude), width)
    cut = of(draw, "cutout")
    assert set(draw.side[cut].tolist()) == (set(range(1, most + 1)) if most else {0})
    for start, size in ((draw.top, height), (draw.left, width)):
        assert (start[cut] >= 0).all()
        assert (start[cut] + draw.side[cut]).max() == size
        assert start[cut].min() == 0
    most = max(1, round(nda.cutout_cap * steps * nda.magnitude))
    cut = of(draw, "temporal_cutout")
    assert set(draw.length[cut].tolist()) == set(range(1, most + 1))
    assert draw.start[cut].min() == 0
    assert (draw.start[cut] + draw.length[cut]).max() == steps


@pytest.mark.parametrize("magnitude", [1.0, 0.3])
def test_shear_and_rotation_fill_their_bounds(magnitude):
    draw = drawn(NDA(1, magnitude))
    amounts = {
        "shear_x": (draw.matrices[:, 0, 1], 0.3 * magnitude),
        "shear_y": (draw.matrices[:, 1, 0], 0.3 * magnitude),
        "rotate": (torch.rad2deg(torch.asin(draw.matrices[:, 0, 1])), 15 * magnitude),
    }
    for name, (amount, bound) in amounts.items():
        values = amount[of(draw, name)] / bound
        assert values.abs().max() <= 1 + 1e-12
        assert values.max() > 0.98
        assert values.min() < -0.98
        quarters = torch.histc(values, 4, -1, 1) / len(values)
        assert (quarters - 0.25).abs().max() < 0.06


def test_a_cutout_wider_than_the_frame_is_made_to_fit():
    draw = drawn(NDA(1, 1.0, 0.25, 1.0), (4, 40, 6))
    assert draw.side.max() == 6
    assert set(drawn(NDA(1, 1.0, 0.25, 1.0), (4, 6, 40)).side[of(draw, "cutout")].tolist()) == set(range(1, 7))


def test_a_cutout_may_lie_anywhere():
    draw = NDA(1, 1.0, 0.25, 0.25).draw(MANY, 4, 4, 4, batch_generator(0, 0, 0))  # a side of one, sixteen places
    cut = of(draw, "cutout")
    places = torch.bincount(4 * draw.top[cut] + draw.left[cut], minlength=16)
    chi_square = ((places - cut.sum() / 16) ** 2 / (cut.sum() / 16)).sum().item()
    assert chi_square < 37.7  # fifteen degrees of freedom, one in a thousand


def test_a_whole_bound_is_not_lost_to_rounding():
    assert 0.29 * 100 < 29
    assert drawn(NDA(1, 1.0, 0.29), (4, 100, 100)).shift_x.max() == 29


def test_each_sample_gets_its_own_operation_and_no_other():
    x = counts(300, 5, 2, 9, 11)
    draw = drawn(FULL, x.shape[1:2] + x.shape[3:], len(x))
    given = apply_draw(x, draw)
    for sample in range(len(x)):
        one, at = x[sample : sample + 1], slice(sample, sample + 1)
        name = OPERATIONS[draw.operation[sample]]
        expected = {
            "identity": lambda one=one: one,
            "shear_x": lambda one=one, at=at: affine_transform(one, shears(-draw.matrices[at, 0, 1], torch.zeros(1))),
            "shear_y": lambda one=one, at=at: affine_transform(one, shears(torch.zeros(1), -draw.matrices[at, 1, 0])),
            "rotate": lambda one=one, at=at: affine_transform(one, rotations(draw.matrices[at, 0, 1].asin().rad2deg())),
            "roll_x": lambda one=one, at=at: roll(one, torch.tensor([0]), draw.shift_x[at]),
            "roll_y": lambda one=one, at=at: roll(one, draw.shift_y[at], torch.tensor([0])),
            "cutout": lambda one=one, at=at: cutout(one, draw.top[at], draw.left[at], draw.side[at]),
            "temporal_cutout": lambda one=one, at=at: temporal_cutout(one, draw.start[at], draw.length[at]),
        }[name]()
        assert torch.equal(given[at], expected), name


def test_parameters_an_operation_does_not_use_do_nothing():
    draw = drawn(FULL)
    straight = torch.eye(2, 3, dtype=torch.float64)
    bent = (draw.matrices != straight).flatten(1).any(1)
    assert not bent[~(of(draw, "shear_x") | of(draw, "shear_y") | of(draw, "rotate"))].any()
    for name, value in {
        "roll_x": draw.shift_x,
        "roll_y": draw.shift_y,
        "cutout": draw.side,
        "temporal_cutout": draw.length,
    }.items():
        assert not value[~of(draw, name)].any()
        assert value[of(draw, name)].any()


@pytest.mark.parametrize("shape", [(6, 4, 2, 34, 34), (6, 3, 2, 5, 7), (1, 4, 2, 8, 8), (6, 1, 2, 9, 9)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_counts_stay_whole_and_the_input_stays(shape, dtype):
    for index in range(8):
        x = counts(*shape).to(dtype)
        before = x.clone()
        given = NDA(3, 1.0)(x, batch_generator(0, 0, index))
        assert torch.equal(x, before)
        assert given.shape == x.shape
        assert given.dtype == dtype
        assert torch.equal(given, given.round())
        assert (given >= 0).all()


def test_steps_and_polarities_share_the_geometry():
    """Temporal cutout zeroes whole steps; but for those, each plane is the same when each was the same."""
    plane = counts(200, 1, 1, 12, 10)
    given = NDA(2, 1.0)(plane.expand(-1, 6, 2, -1, -1), batch_generator(0, 0, 0))
    assert torch.equal(given[:, :, 0], given[:, :, 1])
    blank = ~given.flatten(2).any(2)
    first = given.gather(1, (~blank).long().argmax(1).view(-1, 1, 1, 1, 1).expand(-1, -1, 2, 12, 10))
    expected = first.expand_as(given).masked_fill(blank[:, :, None, None, None], 0)
    assert torch.equal(given, expected)
    assert not blank.all(1).any()


def test_several_operations_are_several_draws_in_a_row():
    x = counts(50, 4, 2, 12, 10)
    generator = batch_generator(3, 0, 0)
    expected = x
    for _ in range(3):
        expected = NDA(1, 0.8)(expected, generator)
    assert torch.equal(NDA(3, 0.8)(x, batch_generator(3, 0, 0)), expected)
    assert NDA(0, 0.8)(x, batch_generator(3, 0, 0)) is x


def test_magnitude_zero_changes_nothing():
    x = counts(64, 4, 2, 12, 12)
    assert torch.equal(NDA(4, 0.0)(x, batch_generator(0, 0, 0)), x)


def test_a_clip_of_one_step_is_never_blanked():
    x = counts(500, 1, 2, 10, 10)
    assert (NDA(1, 1.0, 0.25, 1.0).draw(500, 1, 10, 10, batch_generator(0, 0, 0)).length == 0).all()
    assert NDA(1, 1.0)(x, batch_generator(0, 0, 0)).flatten(1).any(1).all()


def test_draws_depend_on_the_generator_only():
    x = counts(32, 4, 2, 12, 12)
    state = torch.random.get_rng_state()
    given = NDA(2, 1.0)(x, batch_generator(1, 2, 3))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(NDA(2, 1.0)(x, batch_generator(1, 2, 3)), given)
    assert not torch.equal(NDA(2, 1.0)(x, batch_generator(1, 2, 4)), given)


def test_what_is_taken_from_the_generator_does_not_depend_on_the_clip():
    after = []
    for shape in ((4, 12, 12), (1, 34, 20)):
        generator = batch_generator(0, 0, 0)
        operation = FULL.draw(32, *shape, generator).operation
        after.append((operation.tolist(), generator.get_state().tolist()))
    assert after[0] == after[1]


@pytest.mark.parametrize(
    ("settings", "field", "mentions"),
    [
        ({"operations": -1}, "nda_operations", ("from 0 to 100", "-1")),
        ({"operations": 1.5}, "nda_operations", ("from 0 to 100", "1.5")),
        ({"magnitude": 1.01}, "nda_magnitude", ("from 0 to 1", "1.01")),
        ({"roll_cap": -0.2}, "roll_cap", ("from 0 to 1", "-0.2")),
        ({"cutout_cap": "0.2"}, "cutout_cap", ("from 0 to 1", "'0.2'")),
    ],
)
def test_a_bad_setting_is_named(settings, field, mentions):
    with raises(ConfigError, field, mentions=mentions):
        NDA(**settings)


def test_what_is_no_clip_is_refused():
    with raises(InputError, "clips", mentions=("torch.uint8", "floating-point")):
        NDA()(torch.zeros(2, 3, 2, 4, 4, dtype=torch.uint8), batch_generator(0, 0, 0))
