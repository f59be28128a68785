"""Binning on a CUDA device: the same counts as on the CPU, to the last. Run by `make test-gpu`."""

import numpy as np
import pytest
import torch
from tests.raising import raises

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events import Recording, make_events
from ripe_mambaspike.events.binning import bin_batch


def recording_of(count, size, seed):
    random = np.random.default_rng(seed)
    pixels = (random.integers(0, side, count) for side in size)
    return Recording(make_events(*pixels, random.integers(0, 10**6, count), random.integers(0, 2, count)), size)


@pytest.mark.parametrize("by", ["time", "count"])
@pytest.mark.parametrize("grid", [None, 34, (128, 100), (300, 400)])
@pytest.mark.parametrize("binary", [False, True])
def test_a_batch_is_the_cpus(by, grid, binary):
    recordings = [recording_of(count, (240, 180), count) for count in (1, 7, 5000, 200_000)]
    given = bin_batch(recordings, 10, by=by, grid=grid, binary=binary, device="cuda")
    assert given.is_cuda
    assert torch.equal(given.cpu(), bin_batch(recordings, 10, by=by, grid=grid, binary=binary))


def test_several_sensors_on_one_grid():
    recordings = [recording_of(3000, size, 1) for size in ((34, 34), (128, 128), (1280, 720), (40_000, 50_000))]
    given = bin_batch(recordings, 7, grid=64, device="cuda")
    assert torch.equal(given.cpu(), bin_batch(recordings, 7, grid=64))
    assert given.sum() == 4 * 3000


def test_many_events_on_one_pixel():
    """Sums of a million, whatever the order they are added in."""
    events = make_events([3] * 10**6, [2] * 10**6, range(10**6), [1] * 10**6)
    given = bin_batch([Recording(events, (5, 4))], 3, device="cuda")
    assert given[0, :, 1, 2, 3].tolist() == [333_334, 333_333, 333_333]
    assert given.sum() == 10**6


@pytest.mark.parametrize("time_steps", [0, -1, None, 2.5])
def test_steps_are_checked_as_on_the_cpu(time_steps):
    with raises(InputError, field="time_steps") as caught:
        bin_batch([recording_of(10, (34, 34), 0)], time_steps, device="cuda")
    assert f"got {time_steps}" in str(caught.value)
