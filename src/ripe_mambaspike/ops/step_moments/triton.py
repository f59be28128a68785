"""Mean and variance of every step and channel on a GPU: block sizes, launches and the sums of partial sums."""

import torch
import triton
from torch import Tensor

from ripe_mambaspike.ops.step_moments.triton_kernels import (
    join_moments_kernel,
    step_moments_backward_kernel,
    step_moments_kernel,
)
from ripe_mambaspike.ops.triton_launch import FULL, contiguous, flat_block, tile_of

MAX_SPLITS = 256  # of a step's rows: what one program joins at once


def step_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    samples, steps, positions, channels = x.shape
    count = samples * positions
    rows, columns, warps = tile_of(count, channels, 4096, 512)
    column_blocks = triton.cdiv(channels, columns)
    splits = min(triton.cdiv(count, rows), MAX_SPLITS, triton.cdiv(4 * FULL, steps * column_blocks))
    per_split = triton.cdiv(triton.cdiv(count, splits), rows) * rows
    partials = x.new_empty((splits, steps, 2, channels), dtype=torch.float32)
    step_moments_kernel[(splits * steps * column_blocks,)](
        x,
        partials,
        steps,
        positions,
        count,
        per_split,
        CHANNELS=channels,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=warps,
    )
    mean, variance = (x.new_empty((steps, channels), dtype=torch.float32) for _ in range(2))
    width = steps * channels
    join_moments_kernel[(triton.cdiv(width, 16),)](
        partials,
        mean,
        variance,
        splits,
        width,
        count,
        per_split,
        CHANNELS=channels,
        SPLITS=triton.next_power_of_2(splits),
        COLUMNS=16,
        num_warps=4,
    )
    return mean, variance


def step_moments_backward(x: Tensor, mean: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
    samples, steps, positions, channels = x.shape
    grad_x = torch.empty_like(x)
    size = positions * channels
    block, warps = flat_block(size, samples * steps, x.dtype)
    step_moments_backward_kernel[(triton.cdiv(size, block) * samples * steps,)](
        x,
        *contiguous(mean, grad_mean, grad_variance),
        grad_x,
        steps,
        size,
        samples * positions,
        CHANNELS=channels,
        BLOCK=block,
        num_warps=warps,
    )
    return grad_x
