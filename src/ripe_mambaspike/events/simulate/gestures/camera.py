"""The camera that watches gestures: pixel, readout, and how cameras differ. Ships with a DVS128 (`dvs128.json`)."""

import json
import math
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.simulate.pixel import Pixel
from ripe_mambaspike.events.simulate.readout import Readout
from ripe_mambaspike.files import write_file
from ripe_mambaspike.schema import read_json

STREAM = 0xCA3E  # separates these random numbers from all others


@dataclass(frozen=True)
class GestureCamera:
    pixel: Pixel
    readout: Readout
    spread: float = 0.25  # standard deviation of the logarithm of each quantity, from camera to camera
    balance: float = 0.06  # the same of the ON threshold over the OFF threshold

    def drawn(self, seed: int, variation: float = 1.0) -> "GestureCamera":
        """A camera like this one."""
        draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((STREAM, seed))))
        normal = variation * np.clip(draw.standard_normal(8), -2, 2)
        common, cutoff, refractory, mismatch, echo, overshoot, noise = np.exp(self.spread * normal[:7]).tolist()
        lean = math.exp(self.balance * float(normal[7]) / 2)
        pixel, readout = self.pixel, self.readout
        return replace(
            self,
            pixel=replace(
                pixel,
                threshold_on=pixel.threshold_on * common * lean,
                threshold_off=pixel.threshold_off * common / lean,
                cutoff_hz=pixel.cutoff_hz * cutoff,
                refractory_us=pixel.refractory_us * refractory,
                mismatch=min(0.5, pixel.mismatch * mismatch),
                sensor=seed % (1 << 31),
            ),
            readout=replace(
                readout,
                echo=min(1.0, readout.echo * echo),
                overshoot=min(1.0, readout.overshoot * overshoot),
                noise_hz=readout.noise_hz * noise,
            ),
        )


def load_gesture_camera(path: str | Path | None = None) -> GestureCamera:
    """Load a fitted camera; without a path the one that ships."""
    source = Path(str(files(__package__) / "dvs128.json")) if path is None else Path(path)
    return read_json(source, GestureCamera, error=InputError, hint="`ripe sim calibrate-gestures` writes such files")


def save_gesture_camera(camera: GestureCamera, path: str | Path) -> Path:
    return write_file(Path(path), json.dumps(asdict(camera), indent=1).encode() + b"\n")
