"""Mean and variance of every step and channel on a GPU: block sizes, launches and the sums of partial sums."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.step_moments import StepMomentsInputs, empty_moments
from ripe_mambaspike.ops.step_moments.triton_kernels import (
    join_moments_kernel,
    step_moments_backward_kernel,
    step_moments_kernel,
)
from ripe_mambaspike.ops.triton_launch import BUSY_PROGRAMS, ceil_div, contiguous, flat_block, next_power_of_2, tile_of

MAX_SPLITS = 256  # of a step's rows; one program joins them


def step_moments(i: StepMomentsInputs) -> tuple[Tensor, Tensor]:
    x = i.x.contiguous()
    samples, steps, positions, channels = x.shape
    count = samples * positions
    rows, columns, warps = tile_of(count, channels, 4096, 512)
    column_blocks = ceil_div(channels, columns)
    splits = min(ceil_div(count, rows), MAX_SPLITS, ceil_div(4 * BUSY_PROGRAMS, steps * column_blocks))
    per_split = ceil_div(ceil_div(count, splits), rows) * rows
    partials = x.new_empty((splits, steps, 2, channels), dtype=torch.float32)
    step_moments_kernel[(splits * steps * column_blocks,)](
        *(x, partials, steps, positions, count, per_split),
        CHANNELS=channels,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=warps,
    )
    mean, variance = empty_moments(i)
    width = steps * channels
    join_moments_kernel[(ceil_div(width, 16),)](
        *(partials, mean, variance, splits, width, count, per_split),
        CHANNELS=channels,
        SPLITS=next_power_of_2(splits),
        COLUMNS=16,
        num_warps=4,
    )
    return mean, variance


def step_moments_backward(i: StepMomentsInputs, grads: tuple[Tensor | None, ...], mean: Tensor) -> tuple[Tensor]:
    x = i.x.contiguous()
    incoming = (torch.zeros_like(mean) if grad is None else grad for grad in grads)
    samples, steps, positions, channels = x.shape
    grad_x = torch.empty_like(x)
    size = positions * channels
    block, warps = flat_block(size, samples * steps, x.dtype)
    step_moments_backward_kernel[(ceil_div(size, block) * samples * steps,)](
        x,
        *contiguous(mean, *incoming),
        grad_x,
        steps,
        size,
        samples * positions,
        CHANNELS=channels,
        BLOCK=block,
        num_warps=warps,
    )
    return (grad_x,)
