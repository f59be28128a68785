"""Fitting the camera that watches gestures to real clips, and comparing it on clips that it was not fitted to."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.events.gesture_classes import CLASSES
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.simulate.gestures.camera import GestureCamera, save_gesture_camera
from ripe_mambaspike.events.simulate.gestures.fit import (
    GestureRecording,
    TwinScenes,
    fit_gesture_camera,
    mean_statistics,
)
from ripe_mambaspike.events.simulate.gestures.statistics import NAMES, gesture_statistics
from ripe_mambaspike.files import write_file

SENSOR = (128, 128)  # of a DVS128
NUM_TWINS = 4  # simulated clips of a class that a held-out recording is compared with
MAX_ROUNDS = 10_000
Report = Callable[..., None]


def calibrate_gestures(
    real: Path, out: Path, *, rounds: int = 40, twins: int = 1, progress: Report = lambda *_: None
) -> dict[str, Any]:
    """Fit the camera to the clips in `real`, and compare each clip with clips of a camera fitted to the others.

    `real` holds files NN_NAME.bin (or of another format) of a DVS128, where NN is the class of DVS-Gesture, 1 to 11.
    Writes `camera.json`, fitted to all of them, for `ripe sim make sim-dvsgesture --calibration`, a `camera-NAME.json`
    without each, and `comparison.json`. Returns the comparison as a JSON document.
    """
    if not 1 <= rounds <= MAX_ROUNDS:
        raise ConfigError.expected("rounds", f"1 to {MAX_ROUNDS}", rounds)
    recordings = read_gestures(real)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError.expected("out", "a folder that can be made", error, path=out) from error

    def fit(chosen: Sequence[GestureRecording], name: str) -> GestureCamera:
        def update(what: str, done: int, of: int) -> None:
            progress(f"{what} {name}", done, of)

        camera = GestureCamera(*fit_gesture_camera(chosen, SENSOR, twins, rounds, update))
        save_gesture_camera(camera, out / f"{name}.json")
        return camera

    document: dict[str, Any] = {"camera": asdict(fit(recordings, "camera")), "rounds": rounds, "held_out": {}}
    for one in recordings:
        others = [other for other in recordings if other is not one]
        camera = fit(others, f"camera-{one.name}")
        scenes = TwinScenes(one.label, one.duration_us, SENSOR, NUM_TWINS, "val")
        simulated = mean_statistics(scenes.statistics(camera.pixel, camera.readout))
        own = gesture_statistics(one.events, SENSOR, one.duration_us)
        document["held_out"][one.name] = {
            "class": CLASSES[one.label],
            "real": asdict(own),
            "simulated": asdict(simulated),
        }
    document["mean"] = {
        kind: {name: float(np.mean([each[kind][name] for each in document["held_out"].values()])) for name in NAMES}
        for kind in ("real", "simulated")
    }
    write_file(out / "comparison.json", json.dumps(document, indent=1).encode() + b"\n")
    return document


def read_gestures(real: Path) -> list[GestureRecording]:
    """The recordings of a folder, by name."""
    found = []
    for path in sorted(real.glob("[0-9][0-9]_*")) if real.is_dir() else []:
        number = int(path.name[:2])
        if not 1 <= number <= len(CLASSES):
            raise DataError.expected("real", f"a class from 01 to {len(CLASSES)} in the name", path.name[:2], path=path)
        recording = read(path, sensor_size=SENSOR)
        events = recording.events.copy()
        if not len(events):
            raise DataError.expected("real", "a recording with events", "none", path=path)
        events["t"] -= events["t"].min()
        found.append(GestureRecording(path.stem, number - 1, events, int(events["t"].max()) + 1))
    if len(found) < 2:
        raise DataError.expected("real", "at least two recordings NN_NAME.bin", len(found), path=real)
    return found
