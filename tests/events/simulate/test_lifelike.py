"""Lifelike gestures: what is drawn, by which people, and that each clip has a camera of its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.gesture_classes import UNSEEN_MOTIONS
from ripe_mambaspike.events.simulate.difficulty import SceneVariety
from ripe_mambaspike.events.simulate.gestures import CLASSES, PARTS, other_motions, render
from ripe_mambaspike.events.simulate.gestures.camera import load_gesture_camera, save_gesture_camera
from ripe_mambaspike.events.simulate.gestures.lifelike import Exposure, draw_lifelike_clip, simulate_lifelike_gestures
from ripe_mambaspike.events.simulate.gestures.other_motions import (
    MOTIONS,
    SHOWN_MOTIONS,
    draw_other_motion,
    with_motion,
)

DURATION = 600_000
SEEN = Exposure((24, 24), DURATION, 4000, 40_000)


def draw(label, seed, part="train", **how):
    return draw_lifelike_clip(label, seed, part, DURATION, SceneVariety(**how))


@pytest.mark.parametrize("label", range(len(CLASSES)))
def test_every_class_can_be_rendered(label):
    frames = render([draw(label, seed) for seed in range(3)], torch.tensor([0, 123_456, DURATION]), (20, 20))
    assert torch.isfinite(frames).all()
    assert frames.min() > 0


def test_splits_share_no_person():
    people = [{draw(1, seed, part).person for seed in range(40)} for part in PARTS]
    assert all(len(each) > 10 for each in people)
    assert len(set.union(*people)) == sum(map(len, people))


def test_a_clip_is_determined_by_label_seed_and_split():
    assert draw(3, 7) == draw(3, 7)
    assert draw(3, 7) != draw(3, 8)


def test_variety_is_what_was_asked_for():
    plain = [draw(1, seed, texture=0, sway=0, angle=0, background=0) for seed in range(20)]
    assert all(one.fold_depth == one.stripe_depth == one.sway == one.yaw == 0 and not one.things for one in plain)
    assert all(draw(1, seed, background=1).things for seed in range(5))


def test_other_gestures_are_many_motions():
    """Each of the motions and the free ones; no two clips alike."""
    drawn = {draw(len(CLASSES) - 1, seed).free for seed in range(60)}
    assert len(drawn) == 60
    generator = np.random.default_rng(0)
    assert all(len(draw_other_motion(generator)) == 60 for _ in range(4 * len(MOTIONS)))


def test_motions_that_are_held_out_are_never_drawn(monkeypatch):
    held = {name for part in UNSEEN_MOTIONS.values() for name in part}
    assert held.isdisjoint(SHOWN_MOTIONS)
    assert held | set(SHOWN_MOTIONS) == set(MOTIONS)
    assert not set(UNSEEN_MOTIONS["test"]) & set(UNSEEN_MOTIONS["val"])  # reported ones choose nothing
    drawn = []
    counted = {name: lambda draw, name=name: drawn.append(name) or MOTIONS[name](draw) for name in MOTIONS}
    monkeypatch.setattr(other_motions, "MOTIONS", counted)
    generator = np.random.default_rng(0)
    for _ in range(400):
        draw_other_motion(generator)
    assert set(drawn) == set(SHOWN_MOTIONS)


def test_a_clip_of_a_motion_differs_in_that_alone():
    clip = draw(len(CLASSES) - 1, 3)
    shown = with_motion(clip, "salute")
    assert shown == with_motion(clip, "salute")
    assert shown.free != clip.free
    assert with_motion(clip, "swim").free != shown.free
    assert replace(shown, free=clip.free) == clip


def test_each_clip_has_a_camera_of_its_own():
    camera = load_gesture_camera()
    still = camera.drawn(3, variation=0.0)
    assert still.pixel.threshold_on == pytest.approx(camera.pixel.threshold_on)
    assert still.readout.echo == pytest.approx(camera.readout.echo)
    thresholds = [camera.drawn(seed).pixel.threshold_on for seed in range(200)]
    assert np.std(np.log(thresholds)) == pytest.approx(camera.spread, rel=0.25)
    assert camera.drawn(3) == camera.drawn(3)


def test_events_do_not_depend_on_the_batch():
    camera, clips = load_gesture_camera(), [draw(0, 1), draw(4, 2)]
    together = simulate_lifelike_gestures(clips, camera, SEEN, [1, 2])
    alone = simulate_lifelike_gestures(clips[1:], camera, SEEN, [2])
    assert np.array_equal(together[1], alone[0])
    assert all(len(each) > 100 and each["t"].max() < DURATION for each in together)
    assert not np.array_equal(together[0], simulate_lifelike_gestures(clips[:1], camera, SEEN, [5])[0])


def test_a_saved_camera_is_read_back(tmp_path):
    camera = replace(load_gesture_camera(), spread=0.1)
    assert load_gesture_camera(save_gesture_camera(camera, tmp_path / "camera.json")) == camera
    (tmp_path / "camera.json").write_text('{"pixel": {}, "readout": {"echo": 3}}')
    with raises(InputError):
        load_gesture_camera(tmp_path / "camera.json")
