"""Pictures under saccades in whole numbers.

A picture is blurred and laid once on a grid of eighths of a sensor pixel. A frame is that grid seen from another
place: the path is rounded to eighths of a pixel, and each frame copies one pixel in eight.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.events.simulate.exact.pixel import UNITS
from ripe_mambaspike.events.simulate.saccades import Saccades, interpolate, weights

PHASES = 8  # places of the grid in a sensor pixel, along x and y
WEIGHT_UNITS = 1 << 12  # that a weight of 1 is made of
BRIGHTNESS_BITS = 12  # of the light of a frame before its logarithm is looked up


def exact_path(saccades: Saccades, times_us: Sequence[int], late_us: Sequence[float] = ()) -> NDArray[np.int64]:
    """Where the picture's middle is at the times, in eighths of a pixel [n, 2]; `late_us` delays each saccade."""
    times = torch.tensor(times_us, dtype=torch.float64)
    delays = torch.tensor(late_us or (0.0,) * (len(saccades.rests_us) + 1), dtype=torch.float64)
    rests = torch.tensor(saccades.rests_us, dtype=torch.float64)
    path = torch.tensor(saccades.path, dtype=torch.float64)
    seen = interpolate(path, (times - delays[torch.bucketize(times, rests)]) / saccades.knot_us)
    return np.rint(PHASES * seen.numpy()).astype(np.int64)


def place_picture(picture: NDArray[np.uint8], saccades: Saccades, size: tuple[int, int], margin: int) -> Tensor:
    """A square picture on the grid, as levels of light, int32 [PHASES, PHASES, H + 2·margin, W + 2·margin]."""
    cells = len(picture)
    down, across = (
        _cell_weights(pixels + 2 * margin, cells, scale, saccades.blur)
        for pixels, scale in zip(size[::-1], saccades.scale[::-1], strict=True)
    )
    # Sums of products of integers below 2⁵³: exact in float64, in any order.
    seen = down @ (picture.astype(np.float64) @ across.T)
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


@lru_cache(maxsize=64)
def _cell_weights(pixels: int, cells: int, scale: float, blur: float) -> NDArray[np.float64]:
    """The weight of each picture cell at each place of the grid, whole numbers [PHASES · pixels, cells]."""
    # Place k of the grid is k / PHASES pixels from the first pixel's middle.
    phase = torch.arange(PHASES, dtype=torch.float64) / PHASES
    exact = weights(pixels, cells, -phase, scale, blur, torch.float64)  # [PHASES, pixels, cells]
    return np.rint(WEIGHT_UNITS * exact.transpose(0, 1).reshape(PHASES * pixels, cells).numpy())


@lru_cache(maxsize=8)
def _levels(contrast: float, inverted: bool) -> NDArray[np.int32]:
    """The logarithm of the light of each brightness."""
    most = (1 << BRIGHTNESS_BITS) - 1
    sign = -1 if inverted else 1
    found = [sign * math.floor(UNITS * math.log1p(contrast * value / most) + 0.5) for value in range(most + 1)]
    return np.array(found, np.int32)
