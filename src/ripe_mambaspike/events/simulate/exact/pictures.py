"""Pictures under saccades in whole numbers.

A picture is blurred and laid once on a grid of eighths of a sensor pixel. A frame is that grid seen from another
place: the path is rounded to eighths of a pixel, and each frame copies one place in eight.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.simulate.difficulty import PictureDifficulty
from ripe_mambaspike.events.simulate.exact.draws import draw_bell, draw_uniform
from ripe_mambaspike.events.simulate.exact.pixel import (
    UNITS,
    ExactRecordings,
    simulate_exact_events,
    threshold_factors,
)
from ripe_mambaspike.events.simulate.fitted import SENSOR, STEP_US, CameraCalibration, fitted_to
from ripe_mambaspike.events.simulate.saccades import Saccades, interpolate, weights

PHASES = 8  # places of the grid in a sensor pixel, along x and y
WEIGHT_UNITS = 1 << 12  # that a weight of 1 is made of
BLOCK_PLACES = 6 * PHASES  # of the grid that are computed together; most cells have no weight there
BRIGHTNESS_BITS = 12  # of the light of a frame before its logarithm is looked up


@dataclass(frozen=True)
class ShownPicture:
    """A picture to show: a square of brightness, and the longer side of the picture in it."""

    square: NDArray[np.uint8]
    cells: int


@dataclass(frozen=True)
class _PictureClip:
    """A clip, ready to be looked at: its pictures on the grid, and where their middles are at each step [n, 2]."""

    planes: list[Tensor]
    path: NDArray[np.int64]


def simulate_exact_pictures(
    clips: Sequence[Sequence[ShownPicture]],
    camera: CameraCalibration,
    how: PictureDifficulty,
    side: int,
    seeds: Sequence[int],
    variation: float = 1.0,
) -> list[Events]:
    """The events of clips of one or more pictures each, shown in turn, one for each saccade."""
    saccades = replace(camera.saccades, contrast=camera.saccades.contrast * how.contrast)
    camera = replace(camera, pixel=replace(camera.pixel, shot_hz=how.noise_hz), saccades=saccades)
    times = _times(saccades, how)
    each = len(saccades.rests_us) + 1
    turns = [
        (time // saccades.duration_us) * each + bisect_right(saccades.rests_us, time % saccades.duration_us)
        for time in times
    ]
    steps = range(len(times) - 1)
    cuts = tuple(step for step in steps if turns[step + 1] != turns[step]) if how.pictures > 1 else ()
    size = (side, side)
    margin = _margin(camera, how, side, variation)
    placed = [
        _place_clip(shown, camera, how, side, seed, variation, margin) for shown, seed in zip(clips, seeds, strict=True)
    ]
    light = torch.empty(len(clips), side, side, dtype=torch.int32)

    def levels(step: int) -> Tensor:
        for out, clip in zip(light, placed, strict=True):
            planes = clip.planes[turns[step + 1] % len(clip.planes)]
            out.copy_(view_picture(planes, clip.path[step + 1], size, margin))
        return light.flatten(1)

    factors = threshold_factors(camera.variation, variation, seeds)
    recordings = ExactRecordings(size, STEP_US, len(steps), 0, seeds, factors, cuts)
    return simulate_exact_events(levels, camera.pixel, recordings)


def picture_clip_us(saccades: Saccades, how: PictureDifficulty) -> int:
    """The duration of a clip: the saccades are repeated until each picture has had one."""
    return saccades.duration_us // STEP_US * STEP_US * -(-how.pictures // (len(saccades.rests_us) + 1))


def _times(saccades: Saccades, how: PictureDifficulty) -> list[int]:
    """The end of each step, after the beginning of the first."""
    return list(range(0, picture_clip_us(saccades, how) + 1, STEP_US))


def _margin(camera: CameraCalibration, how: PictureDifficulty, side: int, variation: float) -> int:
    """Pixels around the sensor that a picture may move by."""
    by, most = camera.variation, 3 * variation  # draws are cut off at three standard deviations
    path = fitted_to(camera.saccades, side, 1).path
    farthest = max(abs(place) for point in path for place in point) * (1 + most * by.stretch)
    return math.ceil(farthest + (how.shift + most * by.shift / SENSOR[0]) * side) + 2


def _place_clip(
    shown: Sequence[ShownPicture],
    camera: CameraCalibration,
    how: PictureDifficulty,
    side: int,
    seed: int,
    variation: float,
    margin: int,
) -> _PictureClip:
    saccades, by = fitted_to(camera.saccades, side, 1), camera.variation
    drawn = variation * draw_bell(seed, "saccades", 3 + len(by.delay_us)).clip(-3, 3)
    times = [time % saccades.duration_us for time in _times(saccades, how)]
    path = exact_path(saccades, times, np.array(by.delay_us) * drawn[3:], 1 + by.stretch * drawn[0])
    across, down, turned = draw_uniform(seed, "place", 3)
    if how.mirror and turned < 0.5:
        path = path * np.array([-1, 1])
    off = how.shift * (2 * np.array([across, down]) - 1) + by.shift / SENSOR[0] * drawn[1:3]
    moved = path + np.rint(PHASES * side * off).astype(np.int64)
    planes = [
        place_picture(each.square, fitted_to(camera.saccades, side, each.cells), (side, side), margin)
        for each in shown[: how.pictures]
    ]
    return _PictureClip(planes, moved)


def exact_path(
    saccades: Saccades, times_us: Sequence[int], late_us: NDArray[np.float64], stretch: float = 1.0
) -> NDArray[np.int64]:
    """Where the picture's middle is at the times, in eighths of a pixel [n, 2]; `late_us` delays each saccade."""
    times = torch.tensor(times_us, dtype=torch.float64)
    delays = torch.zeros(len(saccades.rests_us) + 1, dtype=torch.float64)
    delays[: len(late_us)] = torch.from_numpy(late_us)
    rests = torch.tensor(saccades.rests_us, dtype=torch.float64)
    path = torch.tensor(saccades.path, dtype=torch.float64)
    seen = interpolate(path, (times - delays[torch.bucketize(times, rests)]) / saccades.knot_us)
    return np.rint(PHASES * stretch * seen.numpy()).astype(np.int64)


def place_picture(picture: NDArray[np.uint8], saccades: Saccades, size: tuple[int, int], margin: int) -> Tensor:
    """A square picture on the grid, as levels of light, int32 [PHASES, PHASES, H + 2·margin, W + 2·margin]."""
    cells = len(picture)
    down, across = (
        _cell_weights(pixels + 2 * margin, cells, scale, saccades.blur)
        for pixels, scale in zip(size[::-1], saccades.scale[::-1], strict=True)
    )
    # Sums of products of integers below 2⁵³: exact in float64, in any order.
    seen = _spread(down, _spread(across, picture.T.astype(np.float64)).T)
    steps = ((1 << BRIGHTNESS_BITS) - 1) / (255 * WEIGHT_UNITS**2)
    light = np.floor(seen * steps + 0.5).astype(np.int64).clip(0, (1 << BRIGHTNESS_BITS) - 1)
    height, width = (pixels + 2 * margin for pixels in size[::-1])
    planes = _levels(saccades.contrast, saccades.inverted)[light].reshape(height, PHASES, width, PHASES)
    return torch.from_numpy(np.ascontiguousarray(planes.transpose(1, 3, 0, 2)))


def view_picture(planes: Tensor, middle: NDArray[np.int64], size: tuple[int, int], margin: int) -> Tensor:
    """The frame of a picture whose middle is at (x, y), in eighths of a pixel from the sensor's middle, [H, W]."""
    left, top = (PHASES * margin - int(place) for place in middle)
    (row, down), (column, across) = divmod(top, PHASES), divmod(left, PHASES)
    return planes[down, across, row : row + size[1], column : column + size[0]]


WeightBlock = tuple[slice, NDArray[np.float64]]  # some cells, and their weights at some places [places, cells]


def _spread(blocks: Sequence[WeightBlock], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cells [cells, n] on the places of the grid [PHASES · pixels, n]."""
    return np.concatenate([block @ values[cells] for cells, block in blocks])


@lru_cache(maxsize=64)
def _cell_weights(pixels: int, cells: int, scale: float, blur: float) -> list[WeightBlock]:
    """The weight of each picture cell at each place of the grid, whole numbers; only cells with a weight count."""
    # Phase k is k / PHASES pixels to the right of its pixel's middle.
    phase = torch.arange(PHASES, dtype=torch.float64) / PHASES
    exact = weights(pixels, cells, -phase, scale, blur, torch.float64)  # [PHASES, pixels, cells]
    whole = np.rint(WEIGHT_UNITS * exact.transpose(0, 1).reshape(PHASES * pixels, cells).numpy())
    blocks = []
    for start in range(0, len(whole), BLOCK_PLACES):
        block = whole[start : start + BLOCK_PLACES]
        used = np.flatnonzero(block.any(0))
        span = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 0)
        blocks.append((span, np.ascontiguousarray(block[:, span])))
    return blocks


@lru_cache(maxsize=8)
def _levels(contrast: float, inverted: bool) -> NDArray[np.int32]:
    """The logarithm of the light of each brightness."""
    most = (1 << BRIGHTNESS_BITS) - 1
    sign = -1 if inverted else 1
    found = [sign * math.floor(UNITS * math.log1p(contrast * value / most) + 0.5) for value in range(most + 1)]
    return np.array(found, np.int32)
