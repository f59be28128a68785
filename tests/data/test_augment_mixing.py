"""Soft targets, Mixup and EventCutMix."""

import math
import random

import pytest
import torch
from torch.nn.functional import cross_entropy

from raising import raises
from ripe_mambaspike.data.augment import Box, EventCutMix, Mixup, batch_generator, cutmix, mixup, soft_targets
from ripe_mambaspike.data.augment.draws import symmetric_beta
from ripe_mambaspike.data.augment.mixing import draw_box
from ripe_mambaspike.errors import ConfigError, InputError

SMALL = (6, 3, 2, 5, 7)
MIXERS = {"mixup": Mixup(0.4, 1.0), "cutmix": EventCutMix(0.4, 1.0)}
mixers = pytest.mark.parametrize("name", MIXERS)


def batch(shape=SMALL, classes=4, dtype=torch.float32):
    return torch.randint(1, 9, shape).to(dtype), torch.arange(shape[0]) % classes


@pytest.mark.parametrize("smoothing", [0, 0.05, 0.1, 1.0])
def test_soft_targets_are_what_cross_entropy_means_by_smoothing(smoothing):
    logits, labels = torch.randn(9, 5, dtype=torch.float64), torch.randint(5, (9,))
    soft = soft_targets(labels, 5, smoothing)
    assert soft.dtype == torch.float32
    for row, label in enumerate(labels.tolist()):
        expected = [smoothing / 5 + (1 - smoothing) * (c == label) for c in range(5)]
        assert soft[row].tolist() == pytest.approx(expected, abs=1e-7)
    torch.testing.assert_close(
        cross_entropy(logits, soft.double()),
        cross_entropy(logits, labels, label_smoothing=smoothing),
        rtol=1e-6,
        atol=0,
    )
    torch.testing.assert_close(soft_targets(soft_targets(labels, 5), smoothing=smoothing), soft)
    torch.testing.assert_close(soft.sum(1), torch.ones(9))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_any_whole_number_is_a_label(dtype):
    assert torch.equal(soft_targets(torch.tensor([2, 0], dtype=dtype), 3), torch.tensor([[0.0, 0, 1], [1, 0, 0]]))


@pytest.mark.parametrize(
    ("targets", "classes", "field", "mentions"),
    [
        (torch.tensor([0, 3]), 3, "targets", ("0 to 3", "from 0 to 2")),
        (torch.tensor([-1, 1]), 3, "targets", ("-1 to 1", "from 0 to 2")),
        (torch.tensor([0, 1]), None, "classes", ()),
        (torch.tensor([[0], [1]]), 3, "targets", ("torch.int64 of shape (2, 1)",)),
        (torch.tensor([True]), 3, "targets", ("torch.bool of shape (1,)",)),
        (torch.rand(2), 3, "targets", ("(2,)", "(B, 3)")),
        (torch.rand(2, 4), 3, "targets", ("(2, 4)", "(B, 3)")),
    ],
)
def test_targets_that_cannot_be_used(targets, classes, field, mentions):
    with raises(InputError, field, mentions=mentions):
        soft_targets(targets, classes)


def test_mixup_is_the_weighted_mean_of_both_halves():
    x, labels = batch()
    x, targets = x.double(), soft_targets(labels, 4).double()
    partners = torch.tensor([3, 0, 2, 5, 1, 4])
    mixed, soft = mixup(x, targets, partners, 0.3)
    for sample, partner in enumerate(partners.tolist()):
        torch.testing.assert_close(mixed[sample], 0.3 * x[sample] + 0.7 * x[partner])
        torch.testing.assert_close(soft[sample], 0.3 * targets[sample] + 0.7 * targets[partner])
    for weight, wanted in ((1.0, x), (0.0, x[partners])):
        assert torch.equal(mixup(x, targets, partners, weight)[0], wanted)


def test_cutmix_pastes_the_box_and_counts_its_pixels():
    x, labels = batch()
    targets = soft_targets(labels, 4).double()
    partners = torch.tensor([3, 0, 2, 5, 1, 4])
    box = Box(1, 4, 5, 7)
    mixed, soft = cutmix(x, targets, partners, box)
    for sample, partner in enumerate(partners.tolist()):
        expected, pasted = x[sample].clone(), 0
        for r in range(5):
            for c in range(7):
                if 1 <= r < 4 and 5 <= c < 7:
                    expected[:, :, r, c] = x[partner, :, :, r, c]
                    pasted += 1
        assert torch.equal(mixed[sample], expected)
        share = pasted / 35
        torch.testing.assert_close(soft[sample], (1 - share) * targets[sample] + share * targets[partner])
    assert torch.equal(cutmix(x, targets, partners, Box(0, 5, 0, 7))[0], x[partners])
    assert torch.equal(cutmix(x, targets, partners, Box(2, 2, 0, 7))[0], x)


@pytest.mark.parametrize(("height", "width"), [(34, 34), (5, 7), (1, 6), (128, 96)])
def test_a_box_is_the_wanted_one_clipped(height, width):
    clipped = 0
    for index in range(300):
        kept = index / 299
        box = draw_box(kept, height, width, batch_generator(0, 0, index))
        tall, wide = round(height * math.sqrt(1 - kept)), round(width * math.sqrt(1 - kept))
        for low, high, want, size in ((box.top, box.bottom, tall, height), (box.left, box.right, wide, width)):
            assert 0 <= low <= high <= size
            assert high - low <= want
            if high - low < want:  # only a border may cut it short, and never by more than to its centre
                assert low == 0 or high == size
                assert high - low >= want // 2
                clipped += 1
            elif low > 0 and high < size:
                assert high - low == want
    assert clipped > 50


def test_box_centres_are_anywhere():
    boxes = [draw_box(1 - 1 / 25, 5, 5, batch_generator(0, 0, index)) for index in range(1500)]
    assert all(box.area() == 1 for box in boxes)
    places = torch.zeros(5, 5)
    for box in boxes:
        places[box.top, box.left] += 1
    assert ((places - 60) ** 2 / 60).sum() < 51.2  # chi-square, 24 degrees of freedom, one in a thousand


@pytest.mark.parametrize("alpha", [0.2, 0.4, 1.0, 5.0])
def test_beta_has_its_mean_variance_and_symmetry(alpha):
    generator = batch_generator(0, 0, 0)
    values = torch.tensor([symmetric_beta(alpha, generator) for _ in range(4000)], dtype=torch.float64)
    assert ((values >= 0) & (values <= 1)).all()
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(values.mean().item() - 0.5) < 4 * (variance / 4000) ** 0.5
    assert values.var().item() == pytest.approx(variance, rel=0.06)
    assert abs((values < 0.1).double().mean() - (values > 0.9).double().mean()) < 0.03


@mixers
@pytest.mark.parametrize("shape", [SMALL, (1, 1, 2, 34, 34), (5, 2, 2, 34, 34)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_target_sums_input_dtype_and_range(name, shape, dtype):
    for index in range(10):
        x, labels = batch(shape, dtype=dtype)
        before = x.clone()
        mixed, soft = MIXERS[name](x, labels, batch_generator(0, 0, index), classes=4)
        assert torch.equal(x, before)
        assert mixed.shape == x.shape
        assert mixed.dtype == dtype
        assert soft.dtype == torch.float32
        torch.testing.assert_close(soft.sum(1), torch.ones(len(x)), rtol=0, atol=1e-6)
        assert (soft >= 0).all()
        if len(x) == 1:
            assert torch.equal(mixed, x)


def test_cutmix_targets_go_by_the_pixels_that_came_from_the_partner():
    """Every sample a count of its own, every sample a class of its own: the share of each can be read off the clip."""
    samples, partial = 7, 0
    x = torch.arange(1.0, samples + 1).view(-1, 1, 1, 1, 1).expand(-1, 2, 2, 9, 12)
    for index in range(60):
        mixed, soft = EventCutMix(1.0, 1.0)(x, torch.arange(samples), batch_generator(0, 0, index), samples)
        assert torch.equal(mixed, mixed[:, :1, :1].expand_as(mixed))  # one box for all steps and polarities
        for sample in range(samples):
            shares = [(mixed[sample, 0, 0] == other + 1).double().mean().item() for other in range(samples)]
            assert soft[sample].tolist() == pytest.approx(shares, abs=1e-6)
            partial += 0 < shares[sample] < 1
    assert partial > 200


def test_mixup_targets_have_the_weight_of_the_clips():
    samples = 7
    x = torch.eye(samples).view(samples, 1, 1, 1, samples).expand(-1, 2, 2, 3, -1)
    weights = set()
    for index in range(40):
        mixed, soft = Mixup(1.0, 1.0)(x, torch.arange(samples), batch_generator(0, 0, index), samples)
        torch.testing.assert_close(mixed, soft.view(samples, 1, 1, 1, samples).expand_as(mixed))
        own = {round(value, 5) for value in soft.diagonal().tolist() if value != 1}
        assert len(own) <= 1  # one λ a batch
        weights |= own
        torch.testing.assert_close(soft.sum(0), torch.ones(samples))  # each is the partner of one
    assert len(weights) > 30


@mixers
def test_a_batch_is_hit_with_its_probability(name):
    x, labels = batch((8, 1, 2, 8, 8), classes=8)
    made = type(MIXERS[name])(1.0, 0.3)
    hit = [made(x, labels, batch_generator(0, 0, index), 8)[0] is not x for index in range(1000)]
    assert abs(sum(hit) / 1000 - 0.3) < 0.06
    for off in (type(made)(1.0, 0), type(made)(0, 1.0)):
        mixed, soft = off(x, labels, batch_generator(0, 0, 0), 8)
        assert mixed is x
        assert torch.equal(soft, torch.eye(8))


@mixers
def test_later_draws_do_not_depend_on_the_outcome(name):
    x, labels = batch()
    states = set()
    for probability in (1e-9, 1.0):
        generator = batch_generator(0, 0, 0)
        type(MIXERS[name])(1.0, probability)(x, labels, generator, 4)
        states.add(tuple(generator.get_state().tolist()))
    assert len(states) == 1


@mixers
def test_draws_depend_on_the_generator_only(name):
    x, labels = batch()
    state, python = torch.random.get_rng_state(), random.getstate()
    given = MIXERS[name](x, labels, batch_generator(1, 2, 3), 4)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert random.getstate() == python
    torch.manual_seed(99)
    random.seed(99)
    for a, b in zip(MIXERS[name](x, soft_targets(labels, 4), batch_generator(1, 2, 3)), given, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(MIXERS[name](x, labels, batch_generator(1, 2, 4), 4)[0], given[0])


@mixers
def test_bad_settings_and_inputs_are_named(name):
    make = type(MIXERS[name])
    for value in (-1, math.inf, math.nan, "0.2", 1001):
        with raises(ConfigError, f"{name}_alpha", mentions=("from 0 to 1000", repr(value))):
            make(value, 0.5)
    with raises(ConfigError, f"{name}_probability", mentions=("from 0 to 1", "got 2")):
        make(0.2, 2)
    x, labels = batch()
    with raises(InputError, "targets", mentions=("5", "6")):
        MIXERS[name](x, labels[:5], batch_generator(0, 0, 0), 4)
    with raises(InputError, "clips", mentions=("floating-point", "torch.int32")):
        MIXERS[name](x.int(), labels, batch_generator(0, 0, 0), 4)
