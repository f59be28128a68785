"""Gestures seen by the pixel: the other way of turning is the same clip backwards, with ON and OFF exchanged."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ripe_mambaspike.events.simulate.gestures import CLASSES, DURATION_US, draw_clip, render, reversed_clip
from ripe_mambaspike.events.simulate.pixel import Pixel, simulate_bins

SIZE = (32, 32)
STILL = Pixel(0.03, 0.03, mismatch=0.0, refractory_us=0.0, leak_hz=0.0, shot_hz=0.0, cutoff_hz=0.0)


def bins(clips, pixel=STILL, time_steps=12):
    seeds = range(len(clips))
    return simulate_bins(
        lambda times: render(clips, times, SIZE),
        pixel,
        SIZE,
        DURATION_US,
        seeds,
        time_steps=time_steps,
        step_us=5000,
        frames=128,
    )


@pytest.mark.parametrize(
    "name", ["right_arm_clockwise", pytest.param("left_arm_counter_clockwise", marks=pytest.mark.slow)]
)
def test_backwards_is_the_other_way_round(name):
    clips = [replace(draw_clip(CLASSES.index(name), seed, "train"), flicker_depth=0.0) for seed in range(3)]
    there, back = bins(clips), bins([reversed_clip(clip) for clip in clips])
    assert CLASSES[reversed_clip(clips[0]).label] != name
    played = back.flip(1).flip(2)  # backwards in time, ON and OFF exchanged
    for forward, backward in zip(there, played, strict=True):
        # Where a pixel stands at the start is no mirror image, so an event of each may differ.
        assert np.corrcoef(forward.flatten(), backward.flatten())[0, 1] > 0.9
        assert abs(float(backward.sum() / forward.sum()) - 1) < 0.03
        assert (forward.sum((0, 2, 3)) - backward.sum((0, 2, 3))).abs().max() < 0.03 * forward.sum()
    wrong = back.flip(1)
    assert np.corrcoef(there[0].flatten(), wrong[0].flatten())[0, 1] < 0.6


def test_a_person_who_stands_still_gives_only_noise():
    clips = [replace(draw_clip(label, 5, "test"), speed=0.0, sway=0.0, flicker_depth=0.0) for label in (0, 3, 10)]
    assert bins(clips).sum() == 0
    noisy = bins(clips, replace(STILL, shot_hz=3.0))
    expected = 3.0 * DURATION_US * 1e-6 * SIZE[0] * SIZE[1]
    assert (noisy.sum((1, 2, 3, 4)) / expected - 1).abs().max() < 0.06
    assert torch.equal(noisy, bins(clips, replace(STILL, shot_hz=3.0)))
