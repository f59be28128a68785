"""The pixel: what still light, contrast, thresholds, bandwidth, dead time and seeds do."""

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events import Recording, bin_events
from ripe_mambaspike.events.simulate.pixel import Pixel, simulate_bins, simulate_events

SIZE = (6, 5)
SECOND = 1_000_000
QUIET = {"mismatch": 0.0, "leak_hz": 0.0, "shot_hz": 0.0, "cutoff_hz": 0.0, "refractory_us": 0.0}


def ramp(factor, batch=1, size=SIZE, duration=SECOND):
    """Light whose logarithm rises by `factor` over the duration, everywhere."""

    def scene(times):
        level = factor * times / duration
        return level.exp().float().view(1, -1, 1, 1).expand(batch, -1, size[1], size[0])

    return scene


def texture(seed=0, batch=2, size=SIZE, steady=False):
    generator = torch.Generator().manual_seed(seed)
    phase, speed = (torch.rand(batch, 1, size[1], size[0], generator=generator, dtype=torch.float64) for _ in range(2))

    def scene(times):
        turn = torch.zeros_like(times) if steady else times / SECOND * 12
        return (1.5 + torch.sin(6 * phase + (1 + speed) * turn.view(1, -1, 1, 1))).float()

    return scene


def run(scene, seeds=(0, 1), step_us=1000, duration=SECOND, size=SIZE, **pixel):
    return simulate_events(scene, Pixel(**{**QUIET, **pixel}), size, duration, seeds, step_us=step_us)


@pytest.mark.parametrize("factor", [1.0, -1.0, 2.5])
@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.25])
def test_a_ramp_gives_one_event_a_threshold(factor, threshold):
    (events,) = run(ramp(factor), seeds=[3], threshold_on=threshold, threshold_off=threshold)
    pixels = SIZE[0] * SIZE[1]
    counts = np.bincount(events["y"].astype(int) * SIZE[0] + events["x"], minlength=pixels)
    assert set(events["p"]) == {int(factor > 0)}
    # Where a pixel stands at the start, from 0 to the next ON event, is chance.
    wanted = abs(factor) / threshold
    low, high = (-1, 1) if factor > 0 else (-2, 1)
    assert ((counts >= wanted + low) & (counts <= wanted + high)).all()
    assert abs(counts.mean() - (wanted if factor > 0 else wanted - 1)) < 0.4


def test_times_are_where_the_line_crosses():
    """Twenty steps or two thousand: a straight line is crossed at the same times."""
    coarse = run(ramp(2.0), seeds=[1], step_us=50_000, threshold_on=0.1)[0]
    fine = run(ramp(2.0), seeds=[1], step_us=500, threshold_on=0.1)[0]
    assert len(coarse) == len(fine)
    order = [np.lexsort((events["t"], events["x"], events["y"])) for events in (coarse, fine)]
    assert np.abs(coarse["t"][order[0]] - fine["t"][order[1]]).max() <= 60
    spaces = np.diff(fine["t"][(fine["x"] == 2) & (fine["y"] == 3)])
    assert np.abs(spaces - SECOND / 20).max() <= 60


def test_still_light_gives_only_noise():
    still = texture(steady=True)
    assert [len(events) for events in run(still)] == [0, 0]
    noisy = run(texture(steady=True, batch=40, size=(34, 34)), range(40), size=(34, 34), leak_hz=0.5, shot_hz=2.0)
    per_second = np.mean([len(events) for events in noisy]) / 34**2
    assert abs(per_second - 2.5) < 0.05
    on = np.concatenate([events["p"] for events in noisy]).mean()
    assert abs(on - 1.5 / 2.5) < 0.01


def test_contrast_and_threshold():
    base = np.mean([len(events) for events in run(texture(batch=2), threshold_on=0.1, threshold_off=0.1)])
    half = np.mean([len(events) for events in run(texture(batch=2), threshold_on=0.05, threshold_off=0.05)])
    assert 1.9 < half / base < 2.6  # twice the events, and those that were too small to be seen before

    def squared(times):
        return texture(batch=2)(times).square()  # twice the contrast, of the logarithm

    double = np.mean([len(events) for events in run(squared, threshold_on=0.1, threshold_off=0.1)])
    assert abs(double / half - 1) < 0.02


def test_backwards_swaps_on_and_off():
    forward, there = texture(), 2 * SECOND

    def backward(times):
        return forward(there - times)

    def count(scene):
        events = np.concatenate(run(scene, duration=there, threshold_on=0.02, threshold_off=0.02))
        return np.bincount(events["p"], minlength=2)

    first, second = count(forward), count(backward)
    assert np.abs(first - second[::-1]).max() < 0.02 * first.sum()


def test_events_and_bins_agree_exactly():
    pixel = Pixel(0.1, 0.12, leak_hz=1.0, shot_hz=1.0, cutoff_hz=60.0)
    factors = torch.tensor([[1.0, 0.9], [1.3, 1.2]])
    common = {"seeds": [7, 8], "step_us": 900, "factors": factors}
    recordings = simulate_events(texture(), pixel, SIZE, SECOND, **common)
    bins = simulate_bins(texture(), pixel, SIZE, SECOND, time_steps=7, **common)
    for events, counts in zip(recordings, bins, strict=True):
        assert len(events) > 100
        assert torch.equal(bin_events(Recording(events, SIZE), 7, start_us=0, stop_us=SECOND), counts)


def test_a_recording_depends_on_its_scene_and_seed_alone():
    pixel = Pixel(0.1, 0.1, shot_hz=3.0)
    both = simulate_events(texture(), pixel, SIZE, SECOND, [5, 6])
    again = simulate_events(texture(), pixel, SIZE, SECOND, [5, 6])
    alone = simulate_events(lambda times: texture()(times)[1:], pixel, SIZE, SECOND, [6])
    other = simulate_events(texture(), pixel, SIZE, SECOND, [5, 9])
    assert both[0].tobytes() == again[0].tobytes()
    assert both[1].tobytes() == alone[0].tobytes() == again[1].tobytes()
    assert both[1].tobytes() != other[1].tobytes()


def test_refractory_pixels_do_not_fire():
    for events in run(texture(), threshold_on=0.02, threshold_off=0.02, refractory_us=4000.0, step_us=1500):
        place = events["y"].astype(int) * SIZE[0] + events["x"]
        order = np.lexsort((events["t"], place))
        gaps = np.diff(events["t"][order])[np.diff(place[order]) == 0]
        assert gaps.min() >= 3999
        assert gaps.min() < 4100


def test_a_slow_pixel_sees_less():
    fast = sum(map(len, run(texture(), threshold_on=0.1, threshold_off=0.1)))
    slow = sum(map(len, run(texture(), threshold_on=0.1, threshold_off=0.1, cutoff_hz=0.5)))
    assert 0 < slow < 0.7 * fast


def test_pixels_differ_by_their_sensor():
    one, same, other = (
        run(ramp(3.0), seeds=[1], threshold_on=0.1, mismatch=0.1, sensor=sensor)[0] for sensor in (0, 0, 1)
    )
    assert one.tobytes() == same.tobytes() != other.tobytes()
    counts = np.bincount(one["y"].astype(int) * SIZE[0] + one["x"], minlength=30)
    assert counts.std() > 1.5


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("threshold_on", 0.0, "at least 1e-06"),
        ("threshold_off", float("nan"), ""),
        ("mismatch", 0.7, "at most 0.5"),
        ("leak_hz", -1.0, "at least 0"),
        ("cutoff_hz", "fast", ""),
    ],
)
def test_invalid_pixels(field, value, expected):
    with raises(InputError, field=field, mentions=[expected, repr(value)]):
        Pixel(**{field: value})


def test_scenes_of_another_size():
    with raises(InputError, field="scene", mentions=["shape (2, 1, 6, 5)", "got (2, 1, 5, 6)"]):
        simulate_events(texture(), Pixel(), SIZE[::-1], SECOND, [0, 1])
    with raises(InputError, field="duration_us", mentions=["duration_us 0"]):
        simulate_events(texture(), Pixel(), SIZE, 0, [0, 1])


def test_warm_pixels_have_settled():
    """Light that flickers about a mean: cold, every pixel first has to find the mean."""

    def flickers(times):
        return (1 + 0.9 * torch.cos(2 * torch.pi * times / 8000)).float().view(1, -1, 1, 1).expand(2, -1, 5, 6)

    dull = Pixel(0.3, 0.3, leak_hz=0, shot_hz=0, cutoff_hz=5.0)
    cold, warm = (
        simulate_events(flickers, dull, (6, 5), SECOND, [0, 1], step_us=2000, warm_us=warm_us)
        for warm_us in (0, SECOND)
    )
    assert len(cold[0]) > 30
    assert len(warm[0]) < len(cold[0]) / 3
    assert all((events["t"] >= 0).all() and (events["t"] < SECOND).all() for events in cold + warm)
