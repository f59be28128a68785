"""Conditions at test: how many events there are afterwards, and that they are always the same."""

import pytest
import torch

from ripe_mambaspike.studies.conditions import changed_clips, parse_condition


@pytest.fixture
def clips():
    generator = torch.Generator().manual_seed(3)
    return torch.poisson(torch.full((4, 6, 2, 20, 24), 0.7), generator=generator)


def changed(clips, text, binary=False):
    labels = torch.arange(len(clips))
    (x, y), *rest = changed_clips([(clips, labels)], parse_condition(text), binary)
    assert not rest
    assert torch.equal(y, labels)
    assert x.shape == clips.shape
    return x


@pytest.mark.parametrize("level", [0.25, 1.0, 2.0])
def test_noise_adds_a_multiple_of_the_events(clips, level):
    x = changed(clips, f"noise={level}")
    added = (x - clips).sum((1, 2, 3, 4)) / clips.sum((1, 2, 3, 4))
    assert (x >= clips).all()
    assert added == pytest.approx(torch.full((4,), level), rel=0.1)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_dropped_events_are_a_share_and_none_is_added(clips, level):
    x = changed(clips, f"dropped={level}")
    assert (x <= clips).all()
    assert (x == x.round()).all()
    assert float(x.sum() / clips.sum()) == pytest.approx(1 - level, abs=0.02)


def test_hot_pixels_fire_on_in_every_bin(clips):
    x = changed(clips, "hot-pixels=0.1")
    most = clips.amax((1, 2, 3, 4))
    hot = (x[:, :, 1] == most[:, None, None, None]).all(1)
    assert 0.05 < hot.float().mean() < 0.15
    assert torch.equal(x[:, :, 0], clips[:, :, 0])
    assert torch.equal(
        x[:, :, 1][~hot[:, None].expand(-1, 6, -1, -1)], clips[:, :, 1][~hot[:, None].expand(-1, 6, -1, -1)]
    )
    assert not torch.equal(hot[0], hot[1])


def test_a_shortened_clip_ends_early(clips):
    x = changed(clips, "shortened=0.5")
    assert torch.equal(x[:, :3], clips[:, :3])
    assert x[:, 3:].sum() == 0


def test_orders_of_time(clips):
    assert torch.equal(changed(clips, "reversed")[:, 0], clips[:, 5])
    x = changed(clips, "shuffled")
    assert not torch.equal(x, clips)
    assert torch.equal(x.sum(1), clips.sum(1))


@pytest.mark.parametrize("text", ["noise=0.5", "dropped=0.5", "hot-pixels=0.1", "shuffled"])
def test_the_same_clips_every_time(clips, text):
    assert torch.equal(changed(clips, text), changed(clips, text))


def test_binary_bins_stay_binary(clips):
    binary = clips.clamp(max=1)
    assert changed(binary, "noise=2", binary=True).max() == 1
    assert changed(binary, "noise=2").max() > 1
