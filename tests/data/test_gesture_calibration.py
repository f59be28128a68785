"""Fitting the gestures' camera: it finds what the readout adds, and compares clips that it was not fitted to."""

import json

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike.data import gesture_calibration
from ripe_mambaspike.data.gesture_calibration import calibrate_gestures, read_gestures
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.events.recording import Recording, pack_events
from ripe_mambaspike.events.simulate.gestures.camera import load_gesture_camera
from ripe_mambaspike.events.simulate.gestures.fit import TwinScenes
from ripe_mambaspike.events.simulate.readout import Readout
from ripe_mambaspike.events.writing import write

SIZE = (32, 32)
SEEN = Readout(echo=0.5, overshoot=0.2, overshoot_us=300.0, overshoot_spread=0.2, noise_hz=0.2, noise_on=0.2)


@pytest.fixture
def clips(tmp_path, monkeypatch):
    """Three clips of a camera that is known, on a small sensor."""
    monkeypatch.setattr(gesture_calibration, "SENSOR", SIZE)
    monkeypatch.setattr(gesture_calibration, "NUM_TWINS", 1)
    folder = tmp_path / "real"
    folder.mkdir()
    for number, name in ((1, "clap"), (2, "wave"), (9, "drums")):
        scenes = TwinScenes(number - 1, 400_000, SIZE, 1, "test")
        (events,) = scenes.events(load_gesture_camera().pixel, SEEN)
        write(Recording(events, SIZE), folder / f"{number:02d}_{name}.npz")
    return folder


def test_the_readout_is_found_and_every_clip_is_compared_without_being_fitted(clips, tmp_path):
    steps = []
    document = calibrate_gestures(clips, tmp_path / "out", rounds=3, progress=lambda *one: steps.append(one))
    found = load_gesture_camera(tmp_path / "out" / "camera.json").readout
    assert found.echo == pytest.approx(SEEN.echo, abs=0.08)
    assert found.overshoot == pytest.approx(SEEN.overshoot, abs=0.08)
    assert found.overshoot_us == pytest.approx(300, rel=0.15)
    assert set(document["held_out"]) == {"01_clap", "02_wave", "09_drums"}
    without = load_gesture_camera(tmp_path / "out" / "camera-02_wave.json")
    assert without.readout != found
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == document
    assert document["mean"]["real"]["echo"] == pytest.approx(
        np.mean([one["real"]["echo"] for one in document["held_out"].values()])
    )
    fits = {"fitting camera", *(f"fitting camera-{name}" for name in document["held_out"])}
    assert {what for what, _, _ in steps} == fits


def test_a_folder_without_clips_is_refused(tmp_path):
    with raises(DataError, field="real", path=tmp_path):
        read_gestures(tmp_path)
    with raises(ConfigError, field="rounds"):
        calibrate_gestures(tmp_path, tmp_path / "out", rounds=0)
    assert not (tmp_path / "out").exists()


def test_a_name_without_a_class_is_refused(clips):
    events = pack_events(*(np.arange(5) for _ in range(3)), np.ones(5))
    write(Recording(events, SIZE), clips / "12_jump.npz")
    with raises(DataError, field="real", path=clips / "12_jump.npz"):
        read_gestures(clips)
