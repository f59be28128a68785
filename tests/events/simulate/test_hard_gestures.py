"""Harder gestures: who is in which split, what each field changes, and that frames are the same on every machine."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ripe_mambaspike.events.simulate.fitted import GESTURE_PIXEL, load_calibration
from ripe_mambaspike.events.simulate.gestures import CLASSES, PARTS, PEOPLE, draw_clip, render
from ripe_mambaspike.events.simulate.gestures.clip import MovingThing
from ripe_mambaspike.events.simulate.gestures.hard import (
    GestureDifficulty,
    draw_hard_clip,
    hard_levels,
    simulate_hard_gestures,
)

LABELS = range(len(CLASSES))
PLAIN = GestureDifficulty(speed=1.0, distance=1.0, angle=0.0, clutter=0, shake=0.0, noise_hz=0.0)
SECOND = 1_000_000
TIMES = torch.arange(0, SECOND, 50_000)


def draw(how=PLAIN, count=44, part="train"):
    return [draw_hard_clip(number % 11, number, part, SECOND, how).clip for number in range(count)]


def clip_hash(events):
    return hashlib.sha256(b"".join(one.tobytes() for one in events)).hexdigest()[:16]


def simulate_some():
    how = GestureDifficulty(people=40, speed=1.6, distance=1.7, angle=40.0, clutter=4, shake=0.5, noise_hz=2.0)
    drawn = [draw_hard_clip(label, label, "test", 400_000, how) for label in (0, 4, 10)]
    camera = replace(load_calibration(), pixel=GESTURE_PIXEL)
    return simulate_hard_gestures(drawn, camera, (24, 24), 4000, 100_000, (0, 1, 2), 2.0)


def test_splits_share_no_person():
    how = GestureDifficulty()
    people = {part: {clip.person for clip in draw(how, 660, part)} for part in PARTS}
    assert {part: len(found) for part, found in people.items()} == {"train": how.people, "val": 24, "test": 36}
    assert not people["train"] & people["val"]
    assert not (people["train"] | people["val"]) & people["test"]
    easy = {person for numbers in PEOPLE.values() for person in numbers}
    assert not easy & set.union(*people.values())
    assert len({clip.person for clip in draw(replace(how, people=5), 220)}) == 5


def test_the_same_seed_gives_the_same_clip():
    how = GestureDifficulty()
    first, other = (draw_hard_clip(3, seed, "val", SECOND, how) for seed in (7, 8))
    assert draw_hard_clip(3, 7, "val", SECOND, how) == first
    assert first != other
    assert draw_hard_clip(3, 7, "train", SECOND, how) != first


def test_what_the_fields_do():
    wide = GestureDifficulty(speed=2.0, distance=3.0, angle=60.0, clutter=5)
    plain, hard = draw(PLAIN, 220), draw(wide, 220)
    assert {clip.yaw for clip in plain} == {0.0}
    assert all(clip.things == () for clip in plain)
    assert {clip.scale for clip in plain} == {1.15}
    assert [clip.speed for clip in plain] == [draw_clip(n % 11, n, "train").speed for n in range(220)]
    turned = np.degrees([clip.yaw for clip in hard])
    assert (turned.min(), turned.max()) == (pytest.approx(-60, abs=3), pytest.approx(60, abs=3))
    faster = np.array([clip.speed for clip in hard]) / [clip.speed for clip in plain]
    assert (faster.min(), faster.max()) == (pytest.approx(0.5, abs=0.03), pytest.approx(2, abs=0.1))
    assert max(clip.scale for clip in hard) / min(clip.scale for clip in hard) == pytest.approx(3, rel=0.05)
    assert {len(clip.things) for clip in hard} == set(range(6))


def test_a_turn_to_the_left_is_still_one_to_the_right_played_backwards():
    clips = {clip.label: clip for clip in draw(GestureDifficulty())}
    assert [label for label in LABELS if clips[label].backwards] == [4, 6]


def test_a_turned_person_is_narrower():
    """The trunk covers fewer columns of the image than from the front."""
    clip = replace(draw(PLAIN, 1)[0], wall=0.9, shirt=0.05, sleeve=0.05, wall_boxes=(), wall_waves=(), x=0.5)
    front, side = (
        render([replace(clip, yaw=yaw)], torch.tensor([0]), (64, 64), dtype=torch.float64)[0, 0, 58] for yaw in (0, 1.4)
    )
    dark = [(row < 0.5 * row.max()).sum() for row in (front, side)]
    assert 0 < dark[1] < 0.8 * dark[0]


def test_things_move_before_the_person():
    ball = MovingThing(0.1, 0.1, 0.8, 0.0, 0, 0, 1, 0, 0, 0, 0.01, 0.06, 0.01, 0, True)
    clip = replace(draw(PLAIN, 1)[0], wall=0.9, wall_boxes=(), wall_waves=(), flicker_depth=0.0)
    without = render([clip], TIMES, (48, 48))[0]
    frames = render([replace(clip, things=(ball,))], TIMES, (48, 48))[0]
    covered = (frames < 0.5 * without).float()
    across = torch.arange(48.0)
    middles = [(frame.sum(0) * across).sum() / frame.sum() for frame in covered if frame.sum() > 3]
    assert middles[0] == pytest.approx(0.1 * 48, abs=1.5)
    assert np.all(np.diff(middles) > 0)
    # A group of clips with different things is painted as each of them alone.
    both = [clip, replace(clip, things=(ball, replace_thing(ball)))]
    torch.testing.assert_close(render(both, TIMES, (48, 48))[1], render(both[1:], TIMES, (48, 48))[0])


def replace_thing(thing):
    return thing._replace(y=0.4, in_front=False)


def test_a_camera_that_shakes_sees_still_things_move():
    hard = draw_hard_clip(0, 0, "train", SECOND, PLAIN)
    still = replace(hard, clip=replace(hard.clip, speed=0.0, sway=0.0, lean=0.0, flicker_depth=0.0, things=()))
    moved = [(levels[1:] - levels[:-1]).abs().sum() for levels in (seen(still), seen(replace(still, shake=1.0)))]
    assert moved[0] == 0
    assert moved[1] > 1e5


def seen(hard):
    return hard_levels(hard, TIMES, (32, 32))


def test_frames_in_float64_are_those_in_float32():
    clip = draw(GestureDifficulty(), 12)[11]
    fine = render([clip], TIMES, (32, 32), dtype=torch.float64)
    assert fine.dtype == torch.float64
    torch.testing.assert_close(fine.float(), render([clip], TIMES, (32, 32)), rtol=2e-3, atol=1e-4)


SAME = "4876aa49bd72455f"  # of three short clips, on every machine


def test_the_same_bits_as_everywhere():
    events = simulate_some()
    assert min(map(len, events)) > 500
    assert max(one["t"].max() for one in events) < 400_000
    assert clip_hash(events) == SAME


@pytest.mark.slow
@pytest.mark.parametrize("level", ["default", "avx2"])
def test_the_same_bits_with_other_instructions(level):
    features = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX2 FMA3"
    environment = {
        **os.environ,
        "ATEN_CPU_CAPABILITY": level,
        "MKL_CBWR": "COMPATIBLE",
        "NPY_DISABLE_CPU_FEATURES": features,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    code = "from test_hard_gestures import clip_hash, simulate_some; print(clip_hash(simulate_some()))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == SAME
