"""NDA's operations, one function each, with explicit parameters for every sample.

A sample's parameters apply to all its steps and both polarities; neutral parameters return the same bits. Operations
copy or drop counts and never interpolate, so integers stay integers. Parameters [B] may be on the CPU; they are moved
without synchronizing.
"""

import torch
from torch import Tensor

from ripe_mambaspike.data.augment.checks import check_clips


def roll(x: Tensor, shift_y: Tensor, shift_x: Tensor) -> Tensor:
    """Shift by whole pixels, down and to the right, with wrap-around.

    x [B, T, 2, H, W], shift_y and shift_x [B] integers.
    """
    check_clips(x)
    height, width = x.shape[-2:]
    rows, columns = _frame(x)
    rows = (rows - _per_sample(shift_y, x)) % height
    columns = (columns - _per_sample(shift_x, x)) % width
    return _take(x, rows * width + columns)


def affine_transform(x: Tensor, matrices: Tensor) -> Tensor:
    """Pixel (x, y) of the result is the pixel of x nearest to M·(x, y, 1), measured from the image's centre in pixels.

    x [B, T, 2, H, W], matrices [B, 2, 3]. Nearest neighbour, because a blend of pixels would make fractions of counts.
    Pixels for which M points outside the frame are zero. A pixel may be used twice or not at all, so the total count is
    preserved only approximately.
    """
    check_clips(x)
    height, width = x.shape[-2:]
    rows, columns = _frame(x)
    # float64 and one operation at a time: the same rounding on every device, and half pixels are exact. A grid in
    # [-1, 1], as grid_sample wants it, would put even the identity next to a rounding edge.
    center_y, center_x = (height - 1) / 2, (width - 1) / 2
    y, x_ = rows - center_y, columns - center_x
    m = matrices.to(device=x.device, dtype=torch.float64, non_blocking=True)[:, :, :, None, None]
    source_x = _nearest(m[:, 0, 0] * x_ + m[:, 0, 1] * y + m[:, 0, 2] + center_x)
    source_y = _nearest(m[:, 1, 0] * x_ + m[:, 1, 1] * y + m[:, 1, 2] + center_y)
    return _take_inside(x, source_y, source_x)


def displace(x: Tensor, factors: Tensor, displacement: Tensor) -> Tensor:
    """Pixel p of the result is the pixel of x nearest to (p + displacement) / factor, measured from the centre.

    x [B, T, 2, H, W], factors [B, 2] and displacement [B, 2, H, W] in pixels, both of x and y; the displacement is on
    the device of the clips. Nearest neighbour, and zero outside the frame, as `affine_transform`.
    """
    check_clips(x)
    height, width = x.shape[-2:]
    rows, columns = _frame(x)
    factor_x, factor_y = (_per_sample(factor, x) for factor in factors.double().unbind(1))
    source_x = _nearest((columns - (width - 1) / 2 + displacement[:, 0]) / factor_x + (width - 1) / 2)
    source_y = _nearest((rows - (height - 1) / 2 + displacement[:, 1]) / factor_y + (height - 1) / 2)
    return _take_inside(x, source_y, source_x)


def shears(amount_x: Tensor, amount_y: Tensor) -> Tensor:
    """Matrices for `affine` that move a row by amount_x a pixel of height and a column by amount_y a pixel of width.

    Amounts [B] → [B, 2, 3], float64. Meant for one of the two at a time; both zero is the identity.
    """
    matrices = _identities(amount_x)
    matrices[:, 0, 1] = -amount_x  # the matrix points from the result back to the source
    matrices[:, 1, 0] = -amount_y
    return matrices


def rotations(degrees: Tensor) -> Tensor:
    """Matrices for `affine` that rotate the image clockwise (y points down). [B] → [B, 2, 3], float64."""
    angle = torch.deg2rad(degrees.double())
    matrices = _identities(degrees)
    matrices[:, 0, 0] = matrices[:, 1, 1] = angle.cos()
    matrices[:, 0, 1], matrices[:, 1, 0] = angle.sin(), -angle.sin()
    return matrices


def cutout(x: Tensor, top: Tensor, left: Tensor, side: Tensor) -> Tensor:
    """Zero a square: rows top … top + side − 1 and columns likewise; it may extend beyond the frame.

    x [B, T, 2, H, W], top, left and side [B] integers; side 0 changes nothing.
    """
    check_clips(x)
    top, left, side = (_per_sample(value, x) for value in (top, left, side))
    rows, columns = _frame(x)
    inside = (rows >= top) & (rows < top + side) & (columns >= left) & (columns < left + side)
    return x.masked_fill(inside[:, None, None], 0)


def temporal_cutout(x: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Zero steps start … start + length − 1. x [B, T, 2, H, W], start and length [B]; length 0 changes nothing."""
    check_clips(x)
    start, length = (value.to(x.device, non_blocking=True)[:, None] for value in (start, length))
    steps = torch.arange(x.shape[1], device=x.device)
    inside = (steps >= start) & (steps < start + length)
    return x.masked_fill(inside[:, :, None, None, None], 0)


def _frame(x: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column numbers, [1, H, 1] and [1, 1, W]."""
    height, width = x.shape[-2:]
    return torch.arange(height, device=x.device).view(1, -1, 1), torch.arange(width, device=x.device).view(1, 1, -1)


def _per_sample(value: Tensor, x: Tensor) -> Tensor:
    return value.to(x.device, non_blocking=True)[:, None, None]


def _nearest(position: Tensor) -> Tensor:
    return (position + 0.5).floor().long()  # halves are rounded up: rounding to even would misplace every other row


def _identities(like: Tensor) -> Tensor:
    return torch.eye(2, 3, dtype=torch.float64, device=like.device).repeat(len(like), 1, 1)


def _take_inside(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x [B, T, 2, H, W] with each pixel taken from a row and a column [B, H, W]; zero outside the frame."""
    height, width = x.shape[-2:]
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    source = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    return _take(x, source).masked_fill_(~inside[:, None, None], 0)


def _take(x: Tensor, source: Tensor) -> Tensor:
    """x [B, T, 2, H, W] with each pixel taken from source [B, H, W], a number of row · W + column."""
    samples, steps, polarities, height, width = x.shape
    index = source.flatten(1)[:, None].expand(samples, steps * polarities, -1)
    return x.reshape(samples, steps * polarities, height * width).gather(2, index).view(x.shape)
