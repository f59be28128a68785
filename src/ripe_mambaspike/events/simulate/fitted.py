"""A calibrated camera: the pixel, the saccades, and how both vary from recording to recording. Ships with N-MNIST's."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.simulate.pixel import Pixel, simulate_bins, simulate_events
from ripe_mambaspike.events.simulate.saccades import Saccades, SaccadeVariation, saccade_scene, scale_saccades
from ripe_mambaspike.files import write_file
from ripe_mambaspike.schema import read_json

# A DVS that watches people; set by hand to resemble five real clips of DVS-Gesture.
GESTURE_PIXEL = Pixel(0.2, 0.2, mismatch=0.08, leak_hz=0.1, shot_hz=0.25, cutoff_hz=120.0)
STEP_US = 2500  # of the fit, and therefore of simulations with it
SENSOR = (34, 34)
CALIBRATED_CELLS = 28  # side of the pictures that the camera was calibrated with


@dataclass(frozen=True)
class Variation:
    """Standard deviations from recording to recording."""

    threshold: float = 0.0  # of the logarithm of both thresholds
    balance: float = 0.0  # of the logarithm of ON over OFF
    shift: float = 0.0  # sensor pixels
    stretch: float = 0.0  # of the path's length
    delay_us: tuple[float, ...] = ()  # of each saccade, independently


@dataclass(frozen=True)
class CameraCalibration:
    pixel: Pixel
    saccades: Saccades
    variation: Variation


def load_calibration(path: str | Path | None = None) -> CameraCalibration:
    """Load a saved calibration; without a path the shipped one, fitted on N-MNIST."""
    source = Path(str(files(__package__) / "nmnist.json")) if path is None else Path(path)
    return read_json(source, CameraCalibration, error=InputError, hint="`ripe sim calibrate` writes such files")


def save_calibration(calibration: CameraCalibration, path: str | Path) -> Path:
    return write_file(Path(path), json.dumps(asdict(calibration), indent=1).encode() + b"\n")


def fitted_to(saccades: Saccades, sensor: int, cells: int) -> Saccades:
    """For a sensor and pictures of other sides, the picture as large in the sensor, the path as long in the picture.

    The blur is the picture's own, but never finer than the sensor's was.
    """
    moved = scale_saccades(saccades, sensor / SENSOR[0])
    across, down = (scale * (CALIBRATED_CELLS / cells) for scale in moved.scale)
    coarser = sum(saccades.scale) / (across + down)
    return replace(moved, scale=(across, down), blur=saccades.blur * max(1.0, coarser))


def simulate_pictures(
    pictures: Tensor,
    calibration: CameraCalibration,
    seeds: Sequence[int],
    *,
    size: tuple[int, int] = SENSOR,
    variation: float = 1.0,
    device: Any = None,
) -> list[Events]:
    """Events of pictures [B, h, w], values 0 to 1, under the calibration's saccades, one seed each.

    `variation` scales how recordings differ; 0 for none.
    """
    return simulate_events(**_simulation(pictures, calibration, seeds, size, variation, device))


def simulate_picture_bins(
    pictures: Tensor,
    calibration: CameraCalibration,
    seeds: Sequence[int],
    *,
    time_steps: int,
    size: tuple[int, int] = SENSOR,
    variation: float = 1.0,
    device: Any = None,
) -> Tensor:
    """The same as counts [B, T, 2, H, W]."""
    common = _simulation(pictures, calibration, seeds, size, variation, device)
    return simulate_bins(time_steps=time_steps, **common)


def _simulation(
    pictures: Tensor,
    calibration: CameraCalibration,
    seeds: Sequence[int],
    size: tuple[int, int],
    variation: float,
    device: Any,
) -> dict[str, Any]:
    """The arguments of the simulation: each picture's scene, and its factors of the thresholds, from its own seed."""
    if pictures.ndim != 3 or len(pictures) != len(seeds):
        got = f"{tuple(pictures.shape)} with {len(seeds)} seeds"
        raise InputError.expected("pictures", "(B, h, w) with B seeds", got)
    if not 0 <= variation <= 10:
        raise InputError.expected("variation", "a number from 0 to 10", variation)
    pictures = pictures.to(device=device, dtype=torch.float32)
    by, saccades = calibration.variation, calibration.saccades
    arguments = {"pixel": calibration.pixel, "size": size, "duration_us": saccades.duration_us, "seeds": seeds}
    arguments |= {"step_us": STEP_US, "device": device}
    if variation == 0 or not any(getattr(by, each.name) for each in fields(by)):
        return {**arguments, "scene": saccade_scene(pictures, saccades, size)}
    # A separate random stream, so that the pixels' noise does not depend on the variation.
    late = torch.tensor(by.delay_us or (0.0,) * (len(saccades.rests_us) + 1))
    drawn = [
        torch.randn(5 + len(late), generator=torch.Generator().manual_seed((seed ^ 0x5ACCADE) & (2**63 - 1)))
        for seed in seeds
    ]
    draws = torch.stack(drawn).clamp(-3, 3) * variation
    common, tilt = by.threshold * draws[:, 0], by.balance / 2 * draws[:, 1]
    factors = torch.stack([common + tilt, common - tilt], 1).exp()
    side = size[0] / SENSOR[0]
    moved = SaccadeVariation(
        (by.shift * side * draws[:, 2:4]).double().to(device),
        (1 + by.stretch * draws[:, 4]).double().to(device),
        (late * draws[:, 5:]).double().to(device),
    )
    return {**arguments, "scene": saccade_scene(pictures, saccades, size, moved), "factors": factors}
