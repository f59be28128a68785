"""A picture under saccades, as N-MNIST was made: the camera moves, the picture does not.

The picture is blurred by a Gaussian and integrated over each pixel's area. The blur is separable, so a frame is two
small matrix products.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.simulate.pixel import Scene


@dataclass(frozen=True)
class Saccades:
    """How the picture moves over the sensor, and how it is shown."""

    path: tuple[tuple[float, float], ...]  # where its middle is, (x, y) in sensor pixels from the sensor's middle
    knot_us: int  # between two points of the path
    duration_us: int
    scale: tuple[float, float] = (1.0, 1.0)  # sensor pixels a picture pixel, along x and y
    blur: float = 0.35  # standard deviation, in picture pixels
    contrast: float = 2.0  # light of white is 1 + contrast times that of black
    inverted: bool = True  # dark on bright, or with swapped polarities
    rests_us: tuple[float, ...] = ()  # when one saccade has ended and the next has not begun

    def __post_init__(self) -> None:
        if len(self.path) < 2 or self.knot_us < 1 or self.duration_us < 1:
            got = f"{len(self.path)} points {self.knot_us} µs apart for {self.duration_us} µs"
            raise InputError.expected("path", "at least two points, 1 µs apart", got)
        for name, value in (
            ("blur", self.blur),
            ("contrast", self.contrast),
            *(("scale", each) for each in self.scale),
        ):
            if not math.isfinite(value) or value <= 0:
                raise InputError.expected(name, "a number above 0", repr(value))


@dataclass(frozen=True)
class SaccadeVariation:
    """How the saccades of each picture differ from the common ones."""

    shift: Tensor  # [B, 2] sensor pixels
    stretch: Tensor  # [B] of the path
    delay_us: Tensor  # [B, saccades]: how late each saccade is


def saccade_scene(
    pictures: Tensor, saccades: Saccades, size: tuple[int, int], moved: SaccadeVariation | None = None
) -> Scene:
    """Light of pictures [B, h, w] with values from 0 to 1."""
    path = torch.tensor(saccades.path, dtype=torch.float64, device=pictures.device)

    def scene(times: Tensor) -> Tensor:
        if moved is None:
            middle = interpolate(path, times[None] / saccades.knot_us)  # [1, n, 2]
        else:
            rests = torch.tensor(saccades.rests_us, dtype=times.dtype, device=times.device)
            late = moved.delay_us[:, torch.bucketize(times, rests)]
            middle = interpolate(path, (times - late) / saccades.knot_us)
            middle = middle * moved.stretch[:, None, None] + moved.shift[:, None]
        seen = seen_pictures(pictures, middle, size, saccades.scale, saccades.blur)
        light = 1 + saccades.contrast * seen.clamp_(0, 1)
        return light.reciprocal_() if saccades.inverted else light

    return scene


def interpolate(path: Tensor, at: Tensor) -> Tensor:
    """Points of the path [·, n, 2], linearly interpolated between its knots and constant after the last."""
    at = at.to(path.dtype).clamp(0, len(path) - 1)
    left = at.floor().clamp(max=len(path) - 2).long()
    return torch.lerp(path[left], path[left + 1], (at - left)[..., None])


def seen_pictures(
    pictures: Tensor, middle: Tensor, size: tuple[int, int], scale: Sequence[float] | Tensor, blur: float | Tensor
) -> Tensor:
    """Pictures [B, h, w] on the sensor [B, n, H, W], their middles at [·, n, 2]."""
    across = weights(size[0], pictures.shape[2], middle[..., 0], scale[0], blur)  # [·, n, W, w]
    down = weights(size[1], pictures.shape[1], middle[..., 1], scale[1], blur)
    return down @ (pictures[:, None] @ across.transpose(-1, -2))


def weights(
    pixels: int,
    cells: int,
    middle: Tensor,
    scale: float | Tensor,
    blur: float | Tensor,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The weight of each picture cell in each sensor pixel [·, n, pixels, cells]."""
    position = (torch.arange(pixels, device=middle.device) - (pixels - 1) / 2 - middle[..., None]) / scale
    edges = torch.arange(cells + 1, device=middle.device) - cells / 2
    below = torch.special.erf(((edges - position[..., None]) / (blur * math.sqrt(2))).to(dtype))
    return below.diff(dim=-1) / 2


def scale_saccades(saccades: Saccades, factor: float) -> Saccades:
    """The same on a sensor with `factor` times the pixels along a side."""
    path = tuple((x * factor, y * factor) for x, y in saccades.path)
    return replace(saccades, path=path, scale=(saccades.scale[0] * factor, saccades.scale[1] * factor))
