"""Norm and neuron over time, and the norm's statistics, on a GPU: block sizes, launches and the sums of partial sums.

Arguments and results are those of the operators in `ops/fused/neurons.py`.
"""

import torch
import triton
from torch import Tensor

from ripe_mambaspike.ops.cuda.neuron_gradient_kernels import norm_fire_backward_kernel, norm_fire_parameters_kernel
from ripe_mambaspike.ops.cuda.neuron_kernels import norm_fire_kernel
from ripe_mambaspike.ops.cuda.step_moment_kernels import (
    join_moments_kernel,
    step_moments_backward_kernel,
    step_moments_kernel,
)

FULL = 4 * 132  # programs that keep a large GPU busy
REGISTERS = 128  # of a thread, so that sixteen warps fit
AHEAD = 4  # steps read before they are computed
MOST_SPLITS = 256  # of a step's rows: what one program joins at once


def norm_fire(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    decay: Tensor,
    rotation: Tensor | None,
    gain: Tensor,
    threshold: Tensor,
    coefficient: Tensor | None,
    relaxed: bool,
    sharpness: float,
    keep_potential: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    samples, steps, positions, channels = x.shape
    spikes = torch.empty_like(x, dtype=x.dtype if relaxed else torch.uint8)
    potential = torch.empty_like(x) if keep_potential else x.new_empty(0)
    operand = torch.empty_like(x)
    size = positions * channels
    block, warps = _flat_block(size, samples, x.dtype)
    ahead = _even_part(steps, AHEAD)
    norm_fire_kernel[(triton.cdiv(size, block) * samples,)](
        x,
        *_contiguous(scale, shift, decay, rotation, gain, threshold, coefficient),
        spikes,
        potential if keep_potential else None,
        operand,
        sharpness,
        size,
        STEPS=steps,
        CHANNELS=channels,
        RELAXED=relaxed,
        AHEAD=ahead,
        BLOCK=block,
        EVEN=size % block == 0 and steps % ahead == 0,
        num_warps=warps,
        maxnreg=REGISTERS,
    )
    return spikes, potential, operand


def norm_fire_backward(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    decay: Tensor,
    rotation: Tensor | None,
    gain: Tensor,
    threshold: Tensor,
    coefficient: Tensor | None,
    grad_spikes: Tensor | None,
    grad_potential: Tensor | None,
    grad_operand: Tensor | None,
    relaxed: bool,
    sharpness: float,
) -> tuple[Tensor, ...]:
    samples, steps, positions, channels = x.shape
    parameters = _contiguous(scale, shift, decay, rotation, gain, threshold, coefficient)
    rows, columns, warps = _tile(positions, channels, 1024, 128)
    row_blocks = samples * triton.cdiv(positions, rows)
    segment = min(4, triton.next_power_of_2(steps))  # what the kernel can join
    segments = triton.cdiv(steps, segment)
    parts = 1 if rotation is None else 2
    slots = 2 + parts + (coefficient is not None)
    states = decay.new_empty((samples, segments - 1, parts, positions, channels))
    channel_sums = decay.new_empty((row_blocks, slots, channels))
    step_sums = None if scale is None else decay.new_empty((row_blocks, steps, channels, 2))
    grad_x = torch.empty_like(x)
    norm_fire_backward_kernel[(row_blocks * triton.cdiv(channels, columns),)](
        x,
        *parameters,
        *_contiguous(grad_spikes, grad_potential, grad_operand),
        grad_x,
        states,
        channel_sums,
        step_sums,
        sharpness,
        positions,
        STEPS=steps,
        CHANNELS=channels,
        RELAXED=relaxed,
        SEGMENT=segment,
        SEGMENTS=segments,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=warps,
        maxnreg=REGISTERS,
    )
    grads = [None if given is None else torch.empty_like(given) for given in parameters]
    norm_fire_parameters_kernel[(triton.cdiv(channels, 16),)](
        channel_sums.sum(0),
        None if step_sums is None else step_sums.sum(0),
        *_contiguous(scale, shift, gain),
        *grads,
        STEPS=steps,
        CHANNELS=channels,
        STEP_LANES=triton.next_power_of_2(steps),
        COLUMNS=16,
        num_warps=1,
    )
    return grad_x, *(decay.new_empty(0) if grad is None else grad for grad in grads)


def step_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    samples, steps, positions, channels = x.shape
    count = samples * positions
    rows, columns, warps = _tile(count, channels, 4096, 512)
    column_blocks = triton.cdiv(channels, columns)
    splits = min(triton.cdiv(count, rows), MOST_SPLITS, triton.cdiv(4 * FULL, steps * column_blocks))
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
    block, warps = _flat_block(size, samples * steps, x.dtype)
    step_moments_backward_kernel[(triton.cdiv(size, block) * samples * steps,)](
        x,
        *_contiguous(mean, grad_mean, grad_variance),
        grad_x,
        steps,
        size,
        samples * positions,
        CHANNELS=channels,
        BLOCK=block,
        num_warps=warps,
    )
    return grad_x


def _contiguous(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if tensor is None else tensor.contiguous() for tensor in tensors)


def _even_part(steps: int, most: int) -> int:
    """How many steps to take at a time, at most so many, such that the last time is (nearly) as full as the others."""
    return triton.cdiv(steps, triton.cdiv(steps, most))


def _flat_block(size: int, copies: int, dtype: torch.dtype) -> tuple[int, int]:
    """(elements, warps) of a program over one of `copies` flat runs: 16 bytes a thread, small where work is scarce."""
    each = 16 // dtype.itemsize
    warps = 8
    while warps > 1 and triton.cdiv(size, 32 * each * warps) * copies < FULL:
        warps //= 2
    return 32 * each * warps, warps


def _tile(positions: int, channels: int, elements: int, per_warp: int) -> tuple[int, int, int]:
    """(rows, columns, warps) of a tile of positions by channels, both powers of two.

    At most 64 channels, so that a tile has enough rows to make its sums over them few; and if that can be had with
    whole cache sectors, a number that divides the channels.
    """
    divisor = channels & -channels  # the largest power of two in it
    columns = min(64, divisor if divisor >= 32 else triton.next_power_of_2(channels))
    rows = min(triton.next_power_of_2(positions), elements // columns)
    return rows, columns, min(8, max(1, rows * columns // per_warp))
