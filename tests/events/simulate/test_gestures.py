"""Gesture scenes: what is drawn, what moves where, and what only time can tell apart."""

import random
from dataclasses import FrozenInstanceError, replace
from functools import cache

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike.data.sets import dvsgesture
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.simulate.gestures import (
    CLASSES,
    PARTS,
    PEOPLE,
    GestureClip,
    draw_clip,
    render,
    reversed_clip,
)
from ripe_mambaspike.events.simulate.gestures.limbs import Canvas
from ripe_mambaspike.events.simulate.gestures.people import SPEED_BANDS, SPEEDS
from ripe_mambaspike.events.simulate.gestures.render import _paint_group

LABELS = range(len(CLASSES))
RIGHT_ARM, LEFT_ARM = (1, 3, 4), (2, 5, 6)
SIDE = 32
TIMES = torch.arange(0, 1_500_000, 25_000)


@cache
def steps(label: int, count: int, first_seed: int = 0) -> torch.Tensor:
    """Changes of log intensity between frames, flicker left out, [clips, n − 1, SIDE, SIDE]."""
    clips = [replace(draw_clip(label, first_seed + i, "train"), flicker_depth=0.0) for i in range(count)]
    return torch.diff(render(clips, TIMES, (SIDE, SIDE)).log(), dim=1)


def energy(label: int, count: int) -> torch.Tensor:
    """Summed changes of each clip, each of sum one, [clips, SIDE, SIDE]."""
    image = steps(label, count).abs().sum(1)
    return image / image.sum((1, 2), keepdim=True)


def test_the_classes_are_those_of_the_real_set():
    assert CLASSES == dvsgesture.CLASSES


@pytest.mark.parametrize("label", LABELS)
def test_intensities_are_positive_and_finite(label):
    clips = [draw_clip(label, seed, part) for seed in range(2) for part in PARTS]
    frames = render(clips, torch.tensor([0, 1, 777_777, 1_500_000]), (33, 21))
    assert frames.shape == (6, 4, 21, 33)
    assert frames.dtype == torch.float32
    assert torch.isfinite(frames).all()
    assert frames.min() > 0


@pytest.mark.parametrize("label", LABELS)
def test_the_same_seed_gives_the_same_bytes(label):
    times = torch.arange(0, 200_000, 9_000)
    clip = draw_clip(label, 5, "val")
    assert draw_clip(label, 5, "val") == clip
    assert draw_clip(label, 6, "val") != clip
    assert torch.equal(render([clip], times, (24, 24)), render([clip], times, (24, 24)))


def test_global_random_numbers_are_neither_used_nor_changed():
    def draw():
        return render([draw_clip(10, 3, "test")], torch.tensor([0, 500_000]), (16, 16))

    expected = draw()
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    assert torch.equal(draw(), expected)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]


def test_parts_share_no_person_speed_or_stream():
    clips = {part: [draw_clip(label, seed, part) for label in LABELS for seed in range(40)] for part in PARTS}
    for part in PARTS:
        assert {clip.person for clip in clips[part]} == set(PEOPLE[part])
        for clip in clips[part]:
            low, high = SPEEDS[clip.label]
            assert int(10 * (clip.speed - low) / (high - low)) in SPEED_BANDS[part]
    assert not set.intersection(*map(set, PEOPLE.values()))
    assert sorted(band for bands in SPEED_BANDS.values() for band in bands) == list(range(10))
    streams = [clip.stream for part in PARTS for clip in clips[part]]
    assert len(set(streams)) == len(streams)


def test_a_person_keeps_their_body_in_other_clothes():
    clips = [draw_clip(label, seed, "val") for label in LABELS for seed in range(5)]
    body = ("shoulder", "upper_arm", "head_width", "skin", "handed")
    for person in PEOPLE["val"]:
        own = [clip for clip in clips if clip.person == person]
        assert len({tuple(getattr(clip, name) for name in body) for clip in own}) == 1
        assert len({clip.shirt for clip in own}) == len(own)


@pytest.mark.parametrize("label", LABELS)
def test_a_clip_reversed_is_the_clip_played_backwards(label):
    clip = draw_clip(label, 2, "train")
    back = reversed_clip(clip)
    times = torch.arange(0, clip.duration_us + 1, 30_000)
    forwards, backwards = render([clip], times, (32, 32)), render([back], clip.duration_us - times, (32, 32))
    torch.testing.assert_close(backwards, forwards, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(render([back], times, (32, 32)), forwards, rtol=1e-2)
    assert reversed_clip(back) == clip


def test_reversal_swaps_the_ways_of_turning_and_nothing_else():
    labels = [reversed_clip(draw_clip(label, 0, "train")).label for label in LABELS]
    assert labels == [0, 1, 2, 4, 3, 6, 5, 7, 8, 9, 10]
    clip = draw_clip(3, 0, "train")
    assert replace(reversed_clip(clip), label=3, backwards=False) == clip


def turning(changes: torch.Tensor) -> torch.Tensor:
    """Which way the middle of what changes goes round in the image: above 0 is counter-clockwise, [clips]."""
    amount = changes.abs()
    total = amount.sum((2, 3)).clamp(min=1e-6)
    across = torch.arange(SIDE, dtype=torch.float32)
    x, y = (amount.sum(2) * across).sum(-1) / total, -(amount.sum(3) * across).sum(-1) / total
    x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    return (x[:, :-1] * y[:, 1:] - x[:, 1:] * y[:, :-1]).sum(1)


@pytest.mark.parametrize(("clockwise", "counter"), [(3, 4), (5, 6)])
def test_only_time_tells_clockwise_from_counter_clockwise(clockwise, counter):
    count = 48
    images = [
        torch.stack([energy(label, count), steps(label, count).sum(1)], 1).flatten(1) for label in (clockwise, counter)
    ]
    train, held_out = [image[: count // 2] for image in images], [image[count // 2 :] for image in images]
    weights = train[0].mean(0) - train[1].mean(0)
    border = (train[0].mean(0) + train[1].mean(0)) @ weights / 2
    right = (held_out[0] @ weights > border).sum() + (held_out[1] @ weights < border).sum()
    assert 0.28 < right / count < 0.72  # three standard deviations of guessing
    # Clockwise to the person is counter-clockwise to the camera, as in the real clips.
    assert (turning(steps(clockwise, count)) > 0).float().mean() > 0.95
    assert (turning(steps(counter, count)) < 0).float().mean() > 0.95


@pytest.mark.parametrize(("right", "left"), [(1, 2), (3, 6), (4, 5)])
def test_left_and_right_are_mirror_images(right, left):
    """The person's right arm is on the left of the image."""
    ones, others = energy(right, 48).mean(0), energy(left, 48).mean(0)
    assert ones[:, : SIDE // 2].sum() > 0.75
    assert others[:, SIDE // 2 :].sum() > 0.75
    assert np.corrcoef(ones.flatten(), others.flip(1).flatten())[0, 1] > 0.95
    assert np.corrcoef(ones.flatten(), others.flatten())[0, 1] < 0.5


@pytest.mark.parametrize("label", LABELS)
def test_every_class_moves_where_it_should(label):
    clips = [draw_clip(label, seed, "train") for seed in range(20)]
    middle = (torch.arange(SIDE) + 0.5) / SIDE
    image = energy(label, 20)
    x = ((image.sum(1) * middle).sum(1) - torch.tensor([clip.x for clip in clips])) / torch.tensor(
        [clip.scale for clip in clips]
    )
    y = (image.sum(2) * middle).sum(1) - torch.tensor([clip.y for clip in clips])
    if label in RIGHT_ARM:
        assert x.max() < -0.05
    elif label in LEFT_ARM:
        assert x.min() > 0.05
    else:
        assert x.mean().abs() < 0.06
    if CLASSES[label].endswith("wave"):
        assert y.mean() < 0  # the hand is held up
    if CLASSES[label] in ("hand_clapping", "arm_roll", "air_drums", "air_guitar"):
        assert y.min() > 0  # before the trunk, below the shoulders
        assert x.abs().max() < 0.17


def test_arms_move_more_than_all_else():
    """The sway of the body alone makes a small part of what changes."""
    clips = [replace(draw_clip(label, 1, "train"), flicker_depth=0.0) for label in LABELS]
    still = [replace(clip, speed=0.0) for clip in clips]
    whole, swaying = (torch.diff(render(some, TIMES, (SIDE, SIDE)).log(), dim=1).abs().sum() for some in (clips, still))
    assert 0 < swaying < 0.25 * whole


@pytest.mark.parametrize("label", LABELS)
def test_nothing_changes_without_motion_sway_and_flicker(label):
    clip = replace(draw_clip(label, 4, "train"), speed=0.0, sway=0.0, flicker_depth=0.0)
    frames = render([clip], torch.arange(0, 1_500_000, 37_000), (32, 32))
    assert torch.equal(frames, frames[:, :1].expand_as(frames))


def test_flicker_is_a_wave_of_the_mains_over_the_whole_image():
    still = replace(draw_clip(0, 4, "train"), speed=0.0, sway=0.0, flicker_depth=0.0)
    lamp = replace(still, flicker_depth=0.1, flicker_hz=100.0, flicker_phase=0.0)
    times = torch.arange(0, 20_000, 500)
    ratio = render([lamp], times, (16, 16)) / render([still], times, (16, 16))
    expected = 1 + 0.1 * torch.cos(2 * torch.pi * 1e-4 * times)
    torch.testing.assert_close(ratio, expected[None, :, None, None].expand_as(ratio), rtol=1e-5, atol=0)


@pytest.mark.parametrize("label", LABELS)
def test_a_small_image_is_a_large_one_averaged(label):
    clips = [draw_clip(label, seed, "test") for seed in range(2)]
    times = torch.tensor([0, 400_000, 1_100_000])
    small, large = render(clips, times, (64, 64)), render(clips, times, (128, 128))
    difference = (small - torch.nn.functional.avg_pool2d(large, 2)).abs() / large.amax((2, 3), keepdim=True)
    assert difference.mean() < 0.003
    assert (difference > 0.1).float().mean() < 0.003


def test_a_frame_does_not_depend_on_the_batch():
    clips = [draw_clip(label, 9, "train") for label in LABELS]
    times = torch.arange(0, 1_500_000, 50_000)
    together = render(clips, times, (32, 32))
    alone = torch.cat([render([clip], times[11:12], (32, 32)) for clip in clips])
    torch.testing.assert_close(together[:, 11:12], alone, rtol=1e-5, atol=1e-6)
    backwards = render(clips, times.flip(0), (32, 32)).flip(1)
    torch.testing.assert_close(backwards, together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("labels", [(1, 2, 3, 5), (0, 7, 8, 9, 10)])
def test_clips_painted_together_look_as_they_do_alone(labels):
    """The way a GPU takes."""
    clips = [draw_clip(label, 9, "train") for label in labels]
    times = torch.arange(0, 1_500_000, 50_000)
    group = torch.empty(len(clips), len(times), 32, 32)
    _paint_group(clips, times.double().numpy(), Canvas(32, 32), 7, group)
    torch.testing.assert_close(group, render(clips, times, (32, 32)), rtol=1e-5, atol=1e-5)


def test_empty_batches():
    clip = draw_clip(0, 0, "train")
    assert render([], torch.arange(3), (8, 8)).shape == (0, 3, 8, 8)
    assert render([clip], torch.arange(0), (8, 4)).shape == (1, 0, 4, 8)
    assert render([clip], torch.arange(2), (1, 1)).shape == (1, 2, 1, 1)


def test_a_clip_is_plain_and_cannot_be_changed():
    clip = draw_clip(10, 0, "train")
    with pytest.raises(FrozenInstanceError):
        clip.label = 3
    assert all(type(value) in (int, float, bool, str, tuple) for value in vars(clip).values())
    assert isinstance(clip, GestureClip)


@pytest.mark.parametrize(
    ("arguments", "field", "values"),
    [
        ((11, 0, "train"), "label", ["from 0 to 10", "got 11"]),
        ((-1, 0, "train"), "label", ["got -1"]),
        ((True, 0, "train"), "label", ["got True"]),
        ((1.0, 0, "train"), "label", ["got 1.0"]),
        ((0, -1, "train"), "seed", ["from 0", "got -1"]),
        ((0, 0.5, "train"), "seed", ["got 0.5"]),
        ((0, 2**63, "train"), "seed", [2**63]),
        ((0, 0, "validation"), "part", ["train, val, test", "'validation'"]),
        ((0, 0, None), "part", ["got None"]),
    ],
)
def test_invalid_draws_are_refused(arguments, field, values):
    with raises(InputError, field=field, mentions=values):
        draw_clip(*arguments)


@pytest.mark.parametrize(
    ("clips", "times", "size", "field", "values"),
    [
        ([3], torch.arange(2), (8, 8), "clips", ["GestureClip", "got 3"]),
        ([], [0, 1], (8, 8), "times_us", ["shape [n]", "got [0, 1]"]),
        ([], torch.zeros(2, 2), (8, 8), "times_us", ["shape [n]", "(2, 2)"]),
        ([], torch.tensor([0.0, float("nan")]), (8, 8), "times_us", ["finite", "NaN"]),
        ([], torch.arange(2), (8, 0), "size", ["from 1 to 4096", "(8, 0)"]),
        ([], torch.arange(2), (8.0, 8), "size", ["(8.0, 8)"]),
        ([], torch.arange(2), 8, "size", ["got 8"]),
    ],
)
def test_invalid_frames_are_refused(clips, times, size, field, values):
    with raises(InputError, field=field, mentions=values):
        render(clips, times, size)
