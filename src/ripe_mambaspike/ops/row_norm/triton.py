# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""LayerNorm of short rows: a program processes many whole rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.row_norm import EPSILON, RowNormInputs
from ripe_mambaspike.ops.triton_launch import ceil_div, next_power_of_2

TILE = 2048  # elements per program
MAX_PROGRAMS = 1024  # of the backward pass: each writes a row of partial sums


@triton.jit
def normalize(x, COLUMNS: tl.constexpr, epsilon, inside):
    """(normalized rows of x, reciprocal standard deviations), zero where masked."""
    mean = tl.sum(x, 1) / COLUMNS
    centered = tl.where(inside, x - mean[:, None], 0.0)
    spread = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / COLUMNS + epsilon)
    return centered * spread[:, None], spread


@triton.jit
def _row_norm_kernel(
    x, weight, bias, out, rows, epsilon, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < COLUMNS)[None, :]
    offsets = row[:, None] * COLUMNS + column[None, :]
    values = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
    normed, _ = normalize(values, COLUMNS, epsilon, inside)
    gain = tl.load(weight + column, mask=column < COLUMNS, other=0.0)
    shift = tl.load(bias + column, mask=column < COLUMNS, other=0.0)
    tl.store(out + offsets, normed * gain[None, :] + shift[None, :], mask=inside)


@triton.jit
def _row_norm_backward_kernel(
    x,
    weight,
    grad,
    grad_x,
    partials,
    rows,
    epsilon,
    PER_PROGRAM: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """grad_x, and per program the sums over its rows for weight and bias: partials [programs, 2, columns]."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    known = column < COLUMNS
    gain = tl.load(weight + column, mask=known, other=0.0)
    grad_gain = tl.zeros((WIDTH,), tl.float32)
    grad_shift = tl.zeros((WIDTH,), tl.float32)
    for first in range(0, PER_PROGRAM, ROWS):
        row = program * PER_PROGRAM + first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & known[None, :]
        offsets = row[:, None] * COLUMNS + column[None, :]
        values = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(grad + offsets, mask=inside, other=0.0).to(tl.float32)
        normed, spread = normalize(values, COLUMNS, epsilon, inside)
        grad_gain += tl.sum(given * normed, 0)
        grad_shift += tl.sum(given, 0)
        through = given * gain[None, :]
        mean = tl.sum(through, 1) / COLUMNS
        along = tl.sum(through * normed, 1) / COLUMNS
        back = (through - mean[:, None] - normed * along[:, None]) * spread[:, None]
        tl.store(grad_x + offsets, back, mask=inside)
    tl.store(partials + (program * 2) * COLUMNS + column, grad_gain, mask=known)
    tl.store(partials + (program * 2 + 1) * COLUMNS + column, grad_shift, mask=known)


def row_norm(i: RowNormInputs) -> Tensor:
    x, weight, bias, dtype = i
    out = torch.empty_like(x, dtype=dtype)
    rows, columns, width, tile = _sizes(x)
    _row_norm_kernel[(ceil_div(rows, tile),)](
        x, weight.contiguous(), bias.contiguous(), out, rows, EPSILON, COLUMNS=columns, WIDTH=width, ROWS=tile
    )
    return out


def row_norm_backward(i: RowNormInputs, grads: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = i.x, i.weight
    rows, columns, width, tile = _sizes(x)
    per_program = ceil_div(ceil_div(rows, MAX_PROGRAMS), tile) * tile
    programs = ceil_div(rows, per_program)
    grad_x = torch.empty_like(x)
    partials = weight.new_empty((programs, 2, columns))
    _row_norm_backward_kernel[(programs,)](
        *(x, weight.contiguous(), grads[0].contiguous(), grad_x, partials, rows, EPSILON),
        PER_PROGRAM=per_program,
        COLUMNS=columns,
        WIDTH=width,
        ROWS=tile,
    )
    return grad_x, partials[:, 0].sum(0), partials[:, 1].sum(0)


def _sizes(x: Tensor) -> tuple[int, int, int, int]:
    """(rows, columns, columns padded to a power of two, rows per tile)."""
    columns = x.shape[-1]
    width = next_power_of_2(columns)
    return x.numel() // columns, columns, width, max(1, TILE // width)
