"""Norm and neuron over time on a GPU: block sizes, launches and the sums of partial sums.

Arguments and results are those of the operators in `ops/norm_fire/__init__.py`.
"""

import torch
from torch import Tensor

from ripe_mambaspike.ops.norm_fire import NormFireInputs, empty_norm_fire
from ripe_mambaspike.ops.norm_fire.triton_gradient import norm_fire_backward_kernel, norm_fire_parameters_kernel
from ripe_mambaspike.ops.norm_fire.triton_kernels import norm_fire_kernel
from ripe_mambaspike.ops.triton_launch import ceil_div, contiguous, flat_block, neuron_state, next_power_of_2, tile_of

REGISTERS = 128  # per thread, so that sixteen warps fit
PREFETCH = 4  # steps loaded at a time


def norm_fire(i: NormFireInputs) -> tuple[Tensor, ...]:
    x = i.x.contiguous()
    samples, steps, positions, channels = x.shape
    outputs = empty_norm_fire(i)
    spikes, _, potential, operand, *finals = outputs
    size = positions * channels
    block, warps = flat_block(size, samples, x.dtype)
    ahead = _steps_per_block(steps, PREFETCH)
    norm_fire_kernel[(ceil_div(size, block) * samples,)](
        x,
        *contiguous(i.scale, i.shift, *i.firing[:5]),
        *(spikes, potential if i.keep_potential else None, operand, i.firing.sharpness, size),
        STEPS=steps,
        CHANNELS=channels,
        RELAXED=i.firing.relaxed,
        PREFETCH=ahead,
        BLOCK=block,
        EVEN=size % block == 0 and steps % ahead == 0,
        **neuron_state(i.scale, i.initial_state, finals, "_ptr"),
        num_warps=warps,
        maxnreg=REGISTERS,
    )
    return outputs


def norm_fire_backward(i: NormFireInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    x = i.x.contiguous()
    samples, steps, positions, channels = x.shape
    parameters = contiguous(i.scale, i.shift, *i.firing[:5])
    scale, shift, decay, rotation, gain, _, coefficient = parameters
    assert decay is not None
    rows, columns, warps = tile_of(positions, channels, 1024, 128)
    row_blocks = samples * ceil_div(positions, rows)
    segment = min(4, next_power_of_2(steps))  # the kernel joins at most four
    segments = ceil_div(steps, segment)
    parts = 1 if rotation is None else 2
    slots = 2 + parts + (coefficient is not None)
    states = decay.new_empty((samples, segments - 1, parts, positions, channels))
    channel_sums = decay.new_empty((row_blocks, slots, channels))
    step_sums = None if scale is None else decay.new_empty((row_blocks, steps, channels, 2))
    grad_x = torch.empty_like(x)
    norm_fire_backward_kernel[(row_blocks * ceil_div(channels, columns),)](
        x,
        *parameters,
        *contiguous(*grads[1:4]),
        *(grad_x, states, channel_sums, step_sums, i.firing.sharpness, positions),
        STEPS=steps,
        CHANNELS=channels,
        RELAXED=i.firing.relaxed,
        SEGMENT=segment,
        SEGMENTS=segments,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=warps,
        maxnreg=REGISTERS,
    )
    found = [None if given is None else torch.empty_like(given) for given in parameters]
    norm_fire_parameters_kernel[(ceil_div(channels, 16),)](
        channel_sums.sum(0),
        None if step_sums is None else step_sums.sum(0),
        *contiguous(scale, shift, gain),
        *found,
        STEPS=steps,
        CHANNELS=channels,
        STEP_LANES=next_power_of_2(steps),
        COLUMNS=16,
        num_warps=1,
    )
    return grad_x, *(decay.new_empty(0) if grad is None else grad for grad in found)


def _steps_per_block(steps: int, most: int) -> int:
    """Steps per block, up to `most`, such that the last block is (nearly) as full as the others."""
    return ceil_div(steps, ceil_div(steps, most))
