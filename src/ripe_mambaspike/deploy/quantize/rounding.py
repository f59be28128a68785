"""Integer weights for a layer, chosen to minimize the change of the layer's outputs.

A layer multiplies its inputs by the rows of W [G, R, K]: G groups (one but for grouped attention), R rows, K inputs.
Of the inputs the second moments H [G, K, K] are known, so a change E of the weights changes the outputs by the mean
square `E H Eᵀ` on its diagonal. There is one scale per row, or with `shared` one per group. Everything is float64.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.models.stored import MAX_INT8

# Clipping ratios of the largest weight: 1, 0.98, …, 0.6, then coarser down to 0.05. A norm over a nearly silent channel
# fuses into one huge weight, which would leave only a few steps for the others of its row.
RATIOS = (*(ratio / 50 for ratio in range(50, 29, -1)), *(0.6 * 0.85**power for power in range(1, 16)))
# The share of the mean moment added to every input, about one more spike in a few dozen clips, so that inputs that are
# silent in calibration count a little too.
DAMPING = 1e-3
MIN_WEIGHT = 1e-30  # rows below are zero: their scales would be subnormal in float32


class Rounded(NamedTuple):
    values: Tensor  # integers from −127 to 127 [G, R, K]
    scale: Tensor  # [G, R, 1], shared [G, 1, 1]; a float32 number each

    def restored(self) -> Tensor:
        return self.values * self.scale


def damped(moments: Tensor) -> Tensor:
    """H with a damped diagonal, so that it can be inverted; the identity if all inputs were zero."""
    mean = moments.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    eye = torch.eye(moments.shape[-1], dtype=moments.dtype)
    return torch.where(mean > 0, moments + DAMPING * mean * eye, eye)


def output_error(change: Tensor, moments: Tensor) -> Tensor:
    """The mean square change of each row's output, [G, R]."""
    return ((change @ moments) * change).sum(-1)


def round_nearest(weight: Tensor, moments: Tensor, shared: bool = False) -> Rounded:
    """Round to the nearest multiple of largest / 127."""
    scale = _scale(_largest(weight, shared), 1.0)
    return Rounded(_nearest(weight, scale), scale)


def searched(weight: Tensor, moments: Tensor, shared: bool = False) -> Rounded:
    """Round to the nearest multiple of the scale from `search_scale`, which is then refitted to the integers."""
    scale = search_scale(weight, moments, shared)
    return _refitted(weight, Rounded(_nearest(weight, scale), scale), moments, shared)


def compensated(weight: Tensor, moments: Tensor, shared: bool = False) -> Rounded:
    """Round one input after the other, the strongest first; later inputs compensate for the rounding error (GPTQ).

    With H⁻¹ = UᵀU the best correction of the inputs after i is the error of i times U[i, i:] / U[i, i].
    """
    scale = search_scale(weight, moments, shared)
    order = moments.diagonal(dim1=-2, dim2=-1).argsort(stable=True, descending=True)  # [G, K]
    across = order[:, None, :].expand_as(weight)
    sorted_moments = moments.gather(1, order[:, :, None].expand_as(moments)).gather(
        2, order[:, None, :].expand_as(moments)
    )
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(sorted_moments)), upper=True)
    rest = weight.gather(2, across)
    values = torch.empty_like(rest)
    for index in range(rest.shape[2]):
        column = rest[:, :, index : index + 1]
        values[:, :, index : index + 1] = _nearest(column, scale)
        error = (column - values[:, :, index : index + 1] * scale) / factor[:, index, index][:, None, None]
        rest[:, :, index + 1 :] -= error * factor[:, None, index, index + 1 :]
    unsorted = torch.empty_like(values).scatter_(2, across, values)
    return _refitted(weight, Rounded(unsorted, scale), moments, shared)


ROUNDINGS: dict[str, Callable[[Tensor, Tensor, bool], Rounded]] = {
    "plain": round_nearest,
    "searched": searched,
    "compensated": compensated,
}


def search_scale(weight: Tensor, moments: Tensor, shared: bool = False) -> Tensor:
    """The scale with the smallest error among those for RATIOS of the largest weight; the first of equals.

    Clipping a few large weights can be worth finer steps for all the others.
    """
    largest = _largest(weight, shared)
    best = least = None
    for ratio in RATIOS:
        scale = _scale(largest, ratio)
        error = output_error(weight - _nearest(weight, scale) * scale, moments)[:, :, None]
        error = error.sum(1, keepdim=True) if shared else error
        if best is None or least is None:
            best, least = scale, error
        else:
            best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    assert best is not None
    return best


def _refitted(weight: Tensor, rounded: Rounded, moments: Tensor, shared: bool) -> Rounded:
    """The best scale for these integers: the projection of W on them under H."""
    weighted = rounded.values @ moments
    over, under = ((weighted * other).sum(-1, keepdim=True) for other in (weight, rounded.values))
    if shared:
        over, under = over.sum(1, keepdim=True), under.sum(1, keepdim=True)
    fitted = (over / under).float().double()
    usable = (under > 0) & fitted.isfinite() & (fitted > MIN_WEIGHT)
    return Rounded(rounded.values, torch.where(usable, fitted, rounded.scale))


def _largest(weight: Tensor, shared: bool) -> Tensor:
    return weight.abs().amax((1, 2) if shared else 2, keepdim=True)


def _scale(largest: Tensor, ratio: float) -> Tensor:
    """The scale rounded to float32, which restoring multiplies by; 1 for rows of zeros."""
    scale = (largest * (ratio / MAX_INT8)).float().double()
    return torch.where(largest > MIN_WEIGHT * MAX_INT8, scale, 1.0)


def _nearest(weight: Tensor, scale: Tensor) -> Tensor:
    return (weight / scale).round().clamp(-MAX_INT8, MAX_INT8)
