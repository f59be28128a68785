"""Zoom and smooth random displacements of a clip's pixels, as between handwritings. The paper has neither."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ripe_mambaspike.data.augment.checks import check_clips, check_generator, check_number
from ripe_mambaspike.data.augment.draws import uniform_draws
from ripe_mambaspike.data.augment.geometry import displace

POINTS = 6  # control points of a displacement along each side of the frame
MAX_ZOOM = 0.9
MAX_ELASTIC = 0.2


def elastic_displacement(points: Tensor, height: int, width: int) -> Tensor:
    """A smooth field through random control points: [B, 2, POINTS, POINTS] → [B, 2, H, W], float64.

    Cubic B-splines, scaled so that independent points of standard deviation 1 give displacements of about 1 pixel (root
    mean square over the frame).
    """
    rows, columns = (spline_weights(size).to(points.device, non_blocking=True) for size in (height, width))
    # Sums in a fixed order, without a matrix product: every device gives the same bits, so the same nearest pixels.
    across = _weighted_sum(points.double()[..., None].unbind(3), columns)
    return _weighted_sum(across[..., None, :].unbind(2), rows[..., None])


def _weighted_sum(parts: Sequence[Tensor], weights: Tensor) -> Tensor:
    total = parts[0] * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total = total + part * weight
    return total


@lru_cache(maxsize=32)
def spline_weights(size: int) -> Tensor:
    """Weight of each control point at each pixel, [POINTS, size]; the mean over pixels of their sum of squares is 1."""
    pixels = torch.linspace(1, POINTS - 2, size, dtype=torch.float64)  # a point more at each border
    distance = (pixels - torch.arange(POINTS, dtype=torch.float64)[:, None]).abs()
    near = 2 / 3 - distance.square() + distance**3 / 2
    weights = torch.where(distance < 1, near, (2 - distance).clamp(min=0) ** 3 / 6)
    return weights / weights.square().sum(0).mean().sqrt()


@dataclass(frozen=True)
class Warp:
    """Every sample enlarged or shrunk about its centre, and displaced smoothly.

    The two axes' factors lie in 1 / (1 + zoom) … 1 + zoom; two thirds of their logarithms are common, so the aspect
    changes less than the size. Displacements have a root mean square of about `elastic` × the shorter side.
    """

    zoom: float = 0.0
    elastic: float = 0.0

    def __post_init__(self) -> None:
        check_number("zoom", self.zoom, MAX_ZOOM)
        check_number("elastic", self.elastic, MAX_ELASTIC)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        check_clips(x)
        check_generator(generator)
        if not self.zoom and not self.elastic:
            return x
        samples, _, _, height, width = x.shape
        common, *own = (2 * uniform_draws(3, samples, generator=generator) - 1) * math.log1p(self.zoom)
        points = torch.randn(samples, 2, POINTS, POINTS, generator=generator, dtype=torch.float64)
        factors = torch.stack([((2 * common + one) / 3).exp() for one in own], 1)  # [B, 2], of x and y
        points = points * (self.elastic * min(height, width))
        return displace(x, factors, elastic_displacement(points.to(x.device, non_blocking=True), height, width))
