"""The paper's table, cell by cell; the whole augmentation; and the generator of a batch."""

import dataclasses

import pytest
import torch

from raising import raises
from ripe_mambaspike.data.augment import (
    NDA,
    Augmentation,
    EventCutMix,
    HorizontalFlip,
    Mixup,
    PolarityFlip,
    TimeReversal,
    augment_clips,
    augmentation_for,
    batch_generator,
    mix,
    soft_targets,
)
from ripe_mambaspike.errors import ConfigError, InputError

# Table "hyper", with "---" written out and what is off as 0.
COLUMNS = ("dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200")
TABLE = {
    "nda_operations": (1, 2, 2, 2, 0),
    "nda_magnitude": (0.3, 0.5, 0.2, 0.3, None),  # of no effect where there are no operations
    "roll_cap": (0.25, 0.25, 0.15, 0.15, None),
    "cutout_cap": (0.25, 0.25, 0.15, 0.20, None),
    "polarity_flip": (0.5, 0.5, 0.5, 0.5, 0),
    "horizontal_flip": (0, 0.5, 0, 0.5, 0.5),
    "time_reversal": (0, 0, 0, 0.5, 0),
    "mixup_alpha": (0.2, 0.4, 0.4, 0.4, 0.2),
    "mixup_probability": (0.3, 0.5, 0.5, 0.5, 0.5),
    "cutmix_alpha": (0, 0.4, 0.2, 0.2, 0),
    "label_smoothing": (0.1, 0.05, 0.05, 0.05, 0.1),
}
ALL = Augmentation(2, 1.0, 0.25, 0.25, 0.5, 0.5, 0.5, True, 1.0, 1.0, 1.0, 1.0, 0.1)


def counts(*shape):
    return torch.randint(1, 9, shape).float()


@pytest.mark.parametrize("name", COLUMNS)
def test_the_papers_table(name):
    settings = dataclasses.asdict(augmentation_for(name))
    for row, cells in TABLE.items():
        cell = cells[COLUMNS.index(name)]
        assert cell is None or settings.pop(row) == cell, row
    # what the table has no row for
    assert settings.pop("cutmix_probability") == 0.5
    assert settings.pop("swap_polarity") is False
    assert (settings.pop("zoom"), settings.pop("elastic")) == (0, 0)
    assert settings.pop("relabel") is False
    assert (settings.pop("mirror_pairs"), settings.pop("reverse_pairs")) == ((), ())
    assert set(settings) <= {row for row, cells in TABLE.items() if None in cells}


def test_the_defaults_are_the_default_column():
    assert Augmentation() == augmentation_for("dvsgesture")


def test_an_unknown_benchmark_names_the_choices():
    known = "dvsgesture, cifar10dvs, ncaltech101, nmnist, dailydvs200"
    with raises(ConfigError, "augmentation", mentions=("'CIFAR10-DVS'", "did you mean 'cifar10dvs'?", known)):
        augmentation_for("CIFAR10-DVS")


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Augmentation)])
def test_every_field_is_checked_and_named(field):
    with raises(ConfigError, field, mentions="-3"):
        Augmentation(**{field: -3})


def test_clips_go_through_the_transforms_in_order():
    x = counts(40, 4, 2, 12, 10)
    generator = batch_generator(0, 0, 0)
    expected = x
    for transform in (
        NDA(2, 1.0, 0.25, 0.25),
        HorizontalFlip(0.5),
        PolarityFlip(0.5),
        TimeReversal(0.5, swap_polarity=True),
    ):
        changed = transform(expected, generator)
        assert not torch.equal(changed, expected)
        expected = changed
    assert torch.equal(augment_clips(x, ALL, batch_generator(0, 0, 0)), expected)


def test_batches_go_through_smoothing_mixup_and_cutmix():
    x, labels = counts(8, 4, 2, 12, 10), torch.arange(8) % 5
    generator = batch_generator(0, 0, 0)
    smooth = soft_targets(labels, 5, 0.1)
    expected = Mixup(1.0, 1.0)(x, smooth, generator)
    between = expected[0]
    expected = EventCutMix(1.0, 1.0)(*expected, generator)
    assert not torch.equal(between, x)
    assert not torch.equal(between, expected[0])
    for given in (
        mix(x, labels, ALL, batch_generator(0, 0, 0), 5),
        mix(x, soft_targets(labels, 5), ALL, batch_generator(0, 0, 0)),
    ):
        assert torch.equal(given[0], expected[0])
        torch.testing.assert_close(given[1], expected[1])


@pytest.mark.parametrize("name", COLUMNS)
def test_smoothing_always_applies(name):
    """A class no sample has gets the smoothing's share and nothing else, however the batch was mixed."""
    settings = augmentation_for(name)
    x, labels = counts(6, 2, 2, 9, 9), torch.arange(6) % 3
    for index in range(20):
        _, soft = mix(x, labels, settings, batch_generator(0, 0, index), 5)
        share = settings.label_smoothing / 5
        torch.testing.assert_close(soft[:, 3:], torch.full((6, 2), share))
        torch.testing.assert_close(soft.sum(1), torch.ones(6))
        assert (soft[:, :3] >= share - 1e-7).all()


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("shape", [(4, 3, 2, 34, 34), (3, 2, 2, 5, 7), (1, 1, 2, 8, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_benchmarks_settings_run_on_any_size(name, shape, dtype):
    settings = augmentation_for(name)
    x = counts(*shape).to(dtype)
    before = x.clone()
    for index in range(4):
        clips = augment_clips(x, settings, batch_generator(0, 0, index))
        assert torch.equal(clips, clips.round())
        mixed, soft = mix(clips, torch.arange(len(x)), settings, batch_generator(0, 1, index), 11)
        assert torch.equal(x, before)
        assert clips.shape == mixed.shape == x.shape
        assert clips.dtype == mixed.dtype == dtype
        assert soft.shape == (len(x), 11)
        assert mixed.isfinite().all()


def test_with_all_off_the_input_is_returned():
    off = Augmentation(nda_operations=0, polarity_flip=0, mixup_alpha=0, label_smoothing=0)
    x, labels = counts(4, 3, 2, 8, 8), torch.arange(4)
    assert augment_clips(x, off, batch_generator(0, 0, 0)) is x
    mixed, soft = mix(x, labels, off, batch_generator(0, 0, 0), 4)
    assert mixed is x
    assert torch.equal(soft, torch.eye(4))


def test_the_whole_is_a_function_of_the_clips_and_the_generator():
    x, labels = counts(8, 4, 2, 12, 12), torch.arange(8)

    def run(*key):
        generator = batch_generator(*key)
        return *mix(augment_clips(x, ALL, generator), labels, ALL, generator, 8), generator.get_state()

    state = torch.random.get_rng_state()
    first = run(5, 1, 7)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(123)
    for a, b in zip(run(5, 1, 7), first, strict=True):
        assert torch.equal(a, b)
    for other in ((6, 1, 7), (5, 2, 7), (5, 1, 8), (1, 5, 7)):
        assert not torch.equal(run(*other)[0], first[0])


def test_the_generator_of_a_batch_is_fixed():
    """Written down: a change of these numbers would change what a resumed run sees."""
    assert batch_generator(0, 0, 0).initial_seed() == 2861050586
    assert torch.randint(1000, (4,), generator=batch_generator(1, 2, 3)).tolist() == [125, 172, 375, 453]


def test_batches_of_a_run_have_different_draws():
    seeds = {
        batch_generator(seed, epoch, index).initial_seed()
        for seed in range(3)
        for epoch in range(20)
        for index in range(50)
    }
    assert len(seeds) == 3000


@pytest.mark.parametrize(
    ("key", "field"),
    [((-1, 0, 0), "seed"), ((0, 1.5, 0), "epoch"), ((0, 0, "3"), "batch index"), ((True, 0, 0), "seed")],
)
def test_a_bad_key_is_named(key, field):
    with raises(ConfigError, field, mentions=("at least 0", repr(key[("seed", "epoch", "batch index").index(field)]))):
        batch_generator(*key)


def test_clips_of_whole_number_type_are_refused():
    with raises(InputError, "clips", mentions=("torch.uint8", "x.float()")):
        augment_clips(torch.zeros(2, 3, 2, 4, 4, dtype=torch.uint8), ALL, batch_generator(0, 0, 0))
