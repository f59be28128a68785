"""Augmentation on a CUDA device: the CPU's draws, the CPU's results, and no waiting. Run by `make test-gpu`."""

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike.data.augment import (
    BENCHMARKS,
    NDA,
    Augmentation,
    HorizontalFlip,
    PolarityFlip,
    TimeReversal,
    Warp,
    augment_clips,
    batch_generator,
    mix,
    soft_targets,
)
from ripe_mambaspike.errors import InputError

STRONG = Augmentation(3, 1.0, 0.25, 0.25, 0.5, 0.5, 0.5, True, 1.0, 1.0, 1.0, 1.0, 0.1)
SHAPES = [(16, 10, 2, 34, 34), (9, 3, 2, 57, 31), (1, 1, 2, 8, 8), (8, 4, 2, 128, 128)]


def counts(shape, dtype=torch.float32):
    return torch.randint(0, 9, shape).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "transform",
    [NDA(3, 1.0), PolarityFlip(), HorizontalFlip(), TimeReversal(0.5, True), Warp(0.3, 0.035)],
    ids=lambda t: type(t).__name__,
)
def test_clips_are_the_cpus_to_the_bit(shape, dtype, transform):
    x = counts(shape, dtype)
    for index in range(20):
        given = transform(x.cuda(), batch_generator(0, 0, index))
        assert given.device.type == "cuda"
        assert given.dtype == dtype
        assert torch.equal(given.cpu(), transform(x, batch_generator(0, 0, index)))


@pytest.mark.parametrize("settings", [*BENCHMARKS.values(), STRONG], ids=[*BENCHMARKS, "strong"])
def test_the_whole_is_the_cpus(settings):
    x, labels = counts((12, 5, 2, 34, 34)), torch.arange(12) % 7
    for index in range(20):
        generators = batch_generator(0, 0, index), batch_generator(0, 0, index)
        expected = augment_clips(x, settings, generators[0])
        given = augment_clips(x.cuda(), settings, generators[1])
        assert torch.equal(given.cpu(), expected)
        expected, wanted = mix(expected, labels, settings, generators[0], 7)
        given, got = mix(given, labels.cuda(), settings, generators[1], 7)
        assert got.device.type == "cuda"
        torch.testing.assert_close(given.cpu(), expected)
        torch.testing.assert_close(got.cpu(), wanted)
        assert torch.equal(generators[0].get_state(), generators[1].get_state())


def test_nothing_waits_for_the_device():
    x, labels = counts((12, 5, 2, 34, 34)).cuda(), (torch.arange(12) % 7).cuda()
    before = x.clone()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for index in range(20):
            generator = batch_generator(0, 0, index)
            mix(augment_clips(x, STRONG, generator), labels, STRONG, generator, 7)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(x, before)


def test_the_same_bits_every_time():
    x, labels = counts((12, 5, 2, 57, 31)).cuda(), torch.arange(12).cuda()

    def run():
        generator = batch_generator(4, 5, 6)
        return mix(augment_clips(x, STRONG, generator), labels, STRONG, generator, 12)

    for a, b in zip(run(), run(), strict=True):
        assert torch.equal(a, b)


def test_the_devices_own_random_state_is_left_alone():
    x, labels = counts((12, 5, 2, 34, 34)).cuda(), torch.arange(12).cuda()
    state = torch.cuda.get_rng_state()
    generator = batch_generator(0, 0, 0)
    mix(augment_clips(x, STRONG, generator), labels, STRONG, generator, 12)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_a_generator_on_the_device_is_refused():
    with raises(InputError, field="generator") as caught:
        augment_clips(counts((2, 3, 2, 8, 8)).cuda(), STRONG, torch.Generator("cuda"))
    assert "cuda" in str(caught.value)


def test_targets_may_stay_on_the_cpu():
    x = counts((6, 2, 2, 8, 8)).cuda()
    mixed, soft = mix(x, soft_targets(torch.arange(6), 6), STRONG, batch_generator(0, 0, 0))
    assert mixed.device.type == "cuda"
    assert soft.device.type == "cpu"
