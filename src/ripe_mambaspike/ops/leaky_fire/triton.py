# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, var-annotated"
"""The leaky neuron over all steps on a GPU: every program owns some elements and keeps their membranes in registers.

Nothing is kept for the backward pass but x. It computes the membranes again, at first up to the start of each segment
of steps, then, from the last segment to the first, within it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.leaky_fire import LeakyFireInputs, empty_leaky_fire
from ripe_mambaspike.ops.norm_fire.triton_step import initial
from ripe_mambaspike.ops.operator import gradient_like
from ripe_mambaspike.ops.triton_launch import ceil_div, contiguous, flat_block, flat_block_of

PREFETCH = 4  # steps loaded at a time
MAX_SEGMENT = 16  # steps whose membranes are in registers at a time, backward
MAX_MEMBRANES = 16  # of a thread in registers; with 32, half as many warps fit


@triton.jit
def owned_elements(size, BLOCK: tl.constexpr):
    """(group, its elements that are this program's [BLOCK], which of them exist); a group has `size` elements."""
    blocks = tl.cdiv(size, BLOCK)
    group = (tl.program_id(0) // blocks).to(tl.int64)
    flat = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    return group, flat, flat < size


@triton.jit
def leaky_step(x, membrane, decay, gain, threshold, HARD: tl.constexpr):
    """(spike, potential, membrane after the reset); `fma`, so that all kernels round a potential alike."""
    potential = tl.fma(decay, membrane, gain * x)
    spike = tl.where(potential >= threshold, 1.0, 0.0)
    if HARD:
        membrane = potential * (1.0 - spike)
    else:
        membrane = potential - threshold * spike
    return spike, potential, membrane


@triton.jit
def surrogate_slope(distance, sharpness, SURROGATE: tl.constexpr):
    """`ops.spikes.SLOPES`."""
    if SURROGATE == "atan":
        angle = 1.5707963267948966 * sharpness * distance
        root = tl.rsqrt(1.0 + angle * angle)  # used twice: cheaper than a division
        slope = 0.5 * sharpness * (root * root)
    elif SURROGATE == "sigmoid":
        spike = tl.sigmoid(sharpness * distance)
        slope = sharpness * spike * (1.0 - spike)
    else:
        height = 1.0 - sharpness * tl.abs(distance)
        slope = sharpness * tl.where(height < 0, 0.0, height)  # NaN stays NaN
    return slope


@triton.jit
def _leaky_fire_kernel(
    x_ptr, decay_ptr, gain_ptr, initial_ptr, spikes_ptr, final_ptr, threshold, size,
    STEPS: tl.constexpr, HARD: tl.constexpr, PREFETCH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """EVEN: blocks divide size and PREFETCH the steps, so there is nothing to mask."""
    group, flat, inside = owned_elements(size, BLOCK)
    decay = tl.load(decay_ptr)
    gain = tl.load(gain_ptr)
    membrane = initial(initial_ptr, group * size + flat, inside)
    for start in range(0, STEPS, PREFETCH):
        step = group * STEPS + start
        xs = ()
        for ahead in tl.static_range(PREFETCH):
            live = EVEN | (inside & (start + ahead < STEPS))
            xs = xs + (tl.load(x_ptr + (step + ahead) * size + flat, mask=live, other=0.0),)
        for ahead in tl.static_range(PREFETCH):
            live = EVEN | (inside & (start + ahead < STEPS))
            x = xs[ahead].to(tl.float32)
            spike, _, after = leaky_step(x, membrane, decay, gain, threshold, HARD)
            if EVEN:
                membrane = after
            else:  # past the last step it stays as it is
                membrane = tl.where(live, after, membrane)
            tl.store(spikes_ptr + (step + ahead) * size + flat, spike.to(spikes_ptr.dtype.element_ty), mask=live)
    tl.store(final_ptr + group * size + flat, membrane, mask=inside)


@triton.jit
def _leaky_fire_backward_kernel(
    x_ptr, decay_ptr, gain_ptr, initial_ptr, grad_spikes_ptr, grad_final_ptr, grad_x_ptr, grad_initial_ptr,
    borders_ptr, sums_ptr, threshold, sharpness, size,
    STEPS: tl.constexpr, HARD: tl.constexpr, DETACHED: tl.constexpr, SURROGATE: tl.constexpr, SEGMENT: tl.constexpr,
    BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Membranes at the segments' borders go to borders [G, SEGMENTS − 1, N], sums for decay and gain to [program, 2].

    EVEN: blocks divide size and SEGMENT the steps. Absent tensors are None.
    """
    SEGMENTS: tl.constexpr = (STEPS + SEGMENT - 1) // SEGMENT
    group, flat, inside = owned_elements(size, BLOCK)
    decay = tl.load(decay_ptr)
    gain = tl.load(gain_ptr)
    owned = group * size + flat
    first = group * STEPS  # 64 bits: offsets from it may need them
    border = group * (SEGMENTS - 1)

    membrane = initial(initial_ptr, owned, inside)
    for segment in range(SEGMENTS - 1):
        xs = ()
        for ahead in tl.static_range(SEGMENT):
            here = (first + segment * SEGMENT + ahead) * size
            xs = xs + (tl.load(x_ptr + here + flat, mask=EVEN | inside, other=0.0),)
        for ahead in tl.static_range(SEGMENT):
            _, _, membrane = leaky_step(xs[ahead].to(tl.float32), membrane, decay, gain, threshold, HARD)
        tl.store(borders_ptr + (border + segment) * size + flat, membrane, mask=EVEN | inside)
    tl.debug_barrier()  # other threads of the program may read what this one wrote

    later = initial(grad_final_ptr, owned, inside)  # the gradient of the membrane after the step
    decay_sum = tl.zeros([BLOCK], tl.float32)
    gain_sum = tl.zeros([BLOCK], tl.float32)
    for back in range(SEGMENTS):
        segment = SEGMENTS - 1 - back
        start = segment * SEGMENT
        membrane = initial(initial_ptr, owned, inside & (segment == 0))
        if SEGMENTS > 1:
            place = (border + segment - 1) * size
            resumed = tl.load(borders_ptr + place + flat, mask=inside & (segment > 0), other=0.0)
            membrane = tl.where(segment > 0, resumed, membrane)
        xs = ()
        from_spikes = ()
        for ahead in tl.static_range(SEGMENT):
            here = (first + start + ahead) * size
            live = EVEN | (inside & (start + ahead < STEPS))
            xs = xs + (tl.load(x_ptr + here + flat, mask=live, other=0.0),)
            if grad_spikes_ptr is not None:
                from_spikes = from_spikes + (tl.load(grad_spikes_ptr + here + flat, mask=live, other=0.0),)
        membranes = (membrane,)  # before each step
        for ahead in tl.static_range(SEGMENT - 1):
            _, _, membrane = leaky_step(xs[ahead].to(tl.float32), membrane, decay, gain, threshold, HARD)
            membranes = membranes + (membrane,)
        for ahead in tl.static_range(SEGMENT - 1, -1, -1):
            live = EVEN | (inside & (start + ahead < STEPS))
            x = xs[ahead].to(tl.float32)
            spike, potential, _ = leaky_step(x, membranes[ahead], decay, gain, threshold, HARD)
            to_spike = tl.zeros([BLOCK], tl.float32)
            if grad_spikes_ptr is not None:
                to_spike = from_spikes[ahead].to(tl.float32)
            kept = later
            if HARD:
                kept = later * (1.0 - spike)
            if not DETACHED:
                if HARD:
                    to_spike -= potential * later
                else:
                    to_spike -= threshold * later
            grad = kept + to_spike * surrogate_slope(potential - threshold, sharpness, SURROGATE)
            if EVEN:
                later = decay * grad
            else:  # past the last step nothing happens
                grad = tl.where(live, grad, 0.0)
                later = tl.where(live, decay * grad, later)
            decay_sum += membranes[ahead] * grad
            gain_sum += x * grad
            here = (first + start + ahead) * size
            tl.store(grad_x_ptr + here + flat, (gain * grad).to(grad_x_ptr.dtype.element_ty), mask=live)
    if grad_initial_ptr is not None:
        tl.store(grad_initial_ptr + owned, later, mask=inside)
    tl.store(sums_ptr + 2 * tl.program_id(0), tl.sum(decay_sum, 0))
    tl.store(sums_ptr + 2 * tl.program_id(0) + 1, tl.sum(gain_sum, 0))


def leaky_fire(i: LeakyFireInputs) -> tuple[Tensor, Tensor]:
    x, decay, gain, state = contiguous(i.x, i.decay, i.gain, i.initial_state)
    assert x is not None
    groups, steps, size = x.shape
    spikes, final = empty_leaky_fire(i)
    block, warps = flat_block(size, groups, x.dtype)
    ahead = _steps_per_block(steps, PREFETCH)
    if x.numel():
        _leaky_fire_kernel[(ceil_div(size, block) * groups,)](
            *(x, decay, gain, state, spikes, final, i.threshold, size),
            STEPS=steps,
            HARD=i.hard_reset,
            PREFETCH=ahead,
            BLOCK=block,
            EVEN=size % block == 0 and steps % ahead == 0,
            num_warps=warps,
        )
    return spikes, final


def leaky_fire_backward(i: LeakyFireInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    x, decay, gain, state = contiguous(i.x, i.decay, i.gain, i.initial_state)
    assert x is not None
    groups, steps, size = x.shape
    grad_x, grad_state = torch.empty_like(x), None if state is None else torch.empty_like(state)
    segment, block, warps = backward_plan(groups, steps, size)
    programs = ceil_div(size, block) * groups
    borders = x.new_empty((groups, ceil_div(steps, segment) - 1, size), dtype=torch.float32)
    sums = x.new_empty((programs, 2), dtype=torch.float32)
    if x.numel():
        _leaky_fire_backward_kernel[(programs,)](
            *(x, decay, gain, state, *contiguous(*grads), grad_x, grad_state, borders, sums),
            *(i.threshold, i.sharpness, size),
            STEPS=steps,
            HARD=i.hard_reset,
            DETACHED=i.detach_reset,
            SURROGATE=i.surrogate,
            SEGMENT=segment,
            BLOCK=block,
            EVEN=size % block == 0 and steps % segment == 0,
            num_warps=warps,
        )
    grad_decay, grad_gain = sums.sum(0, dtype=torch.float64)
    found = ((grad_decay, i.decay), (grad_gain, i.gain), (grad_state, i.initial_state))
    return grad_x, *(gradient_like(grad, given, i.decay) for grad, given in found)


def backward_plan(groups: int, steps: int, size: int) -> tuple[int, int, int]:
    """(steps of a segment, elements and warps of a program): the fewer steps, the more elements a thread has."""
    segment = _steps_per_block(steps, MAX_SEGMENT)
    each = next(count for count in (4, 2, 1) if count * segment <= MAX_MEMBRANES)
    return segment, *flat_block_of(size, groups, each)


def _steps_per_block(steps: int, most: int) -> int:
    """Steps per block, up to `most`, such that the last block is (nearly) as full as the others."""
    return ceil_div(steps, ceil_div(steps, most))
