# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, var-annotated, misc"
"""Norm and neuron over time, backward: the input's gradient, and the parameters' from per-program partial sums."""

import triton
import triton.language as tl

from ripe_mambaspike.ops.norm_fire.triton_kernels import normed
from ripe_mambaspike.ops.norm_fire.triton_step import fire_step, fire_step_gradient


@triton.jit
def norm_fire_backward_kernel(
    x_ptr, scale_ptr, shift_ptr, decay_ptr, rotation_ptr, gain_ptr, threshold_ptr, coefficient_ptr, grad_spikes_ptr,
    grad_potential_ptr, grad_operand_ptr, grad_x_ptr, states_ptr, channel_sums_ptr, step_sums_ptr, sharpness,
    positions,
    STEPS: tl.constexpr, CHANNELS: tl.constexpr, RELAXED: tl.constexpr, SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS positions by COLUMNS channels of one sample.

    A first sweep stores the state at every segment's border in states [B, SEGMENTS − 1, 1 or 2, P, C]; then, from the
    last segment to the first, the steps are recomputed and traversed backward. Sums over this program's rows go to
    channel_sums [row block; decay, gain, threshold, rotation?, coefficient?; C] and, with a norm, step_sums
    [row block, T, C, 2] (of x·grad_charged and grad_charged, which give the gradients of scale, shift and gain).
    Steps past the last and elements outside have no gradient coming in, so they add nothing to any sum.
    """
    RESONATING: tl.constexpr = rotation_ptr is not None
    FILTERED: tl.constexpr = coefficient_ptr is not None
    PARTS: tl.constexpr = 2 if RESONATING else 1
    column_blocks = tl.cdiv(CHANNELS, COLUMNS)
    row_blocks = tl.cdiv(positions, ROWS)
    row_block = (tl.program_id(0) // column_blocks).to(tl.int64)
    sample = row_block // row_blocks
    row = (row_block % row_blocks).to(tl.int32) * ROWS + tl.arange(0, ROWS)
    channel = (tl.program_id(0) % column_blocks) * COLUMNS + tl.arange(0, COLUMNS)
    known = channel < CHANNELS
    inside = (row < positions)[:, None] & known[None, :]
    offset = row[:, None] * CHANNELS + channel[None, :]
    lanes = tl.broadcast_to(channel[None, :], [ROWS, COLUMNS])
    size = positions * CHANNELS
    first = sample * STEPS * size

    decay = tl.load(decay_ptr + channel, mask=known, other=0.0)[None, :]
    gain = tl.load(gain_ptr + channel, mask=known, other=0.0)[None, :]
    threshold = tl.load(threshold_ptr + channel, mask=known, other=0.0)[None, :]
    rotation = decay
    if RESONATING:
        rotation = tl.load(rotation_ptr + channel, mask=known, other=0.0)[None, :]
    coefficient = decay
    if FILTERED:
        coefficient = tl.load(coefficient_ptr + channel, mask=known, other=0.0)[None, :]

    zeros = tl.zeros([ROWS, COLUMNS], tl.float32)
    real = zeros
    imag = zeros
    for segment in range(SEGMENTS - 1):
        start = segment * SEGMENT
        xs = ()
        for ahead in tl.static_range(SEGMENT):
            xs = xs + (tl.load(x_ptr + (first + (start + ahead) * size) + offset, mask=inside, other=0.0),)
        for ahead in tl.static_range(SEGMENT):
            x = normed(xs[ahead], scale_ptr, shift_ptr, (start + ahead) * CHANNELS + lanes, inside)
            _, _, real, imag = fire_step(
                x, real, imag, decay, rotation, gain, threshold, sharpness, RESONATING, RELAXED
            )
        border = states_ptr + (sample * (SEGMENTS - 1) + segment) * PARTS * size
        tl.store(border + offset, real, mask=inside)
        if RESONATING:
            tl.store(border + size + offset, imag, mask=inside)
    tl.debug_barrier()  # other threads of the program may read what this one wrote

    grad_real = zeros
    grad_imag = zeros
    later = zeros  # the operand's gradient one step later
    decay_sum = zeros
    gain_sum = zeros
    threshold_sum = zeros
    rotation_sum = zeros
    coefficient_sum = zeros
    for back in range(SEGMENTS):
        segment = SEGMENTS - 1 - back
        start = segment * SEGMENT
        resumed = inside & (segment > 0)
        border = states_ptr + (sample * (SEGMENTS - 1) + segment - 1) * PARTS * size
        real = tl.load(border + offset, mask=resumed, other=0.0)
        imag = zeros
        if RESONATING:
            imag = tl.load(border + size + offset, mask=resumed, other=0.0)
        xs = ()
        from_spikes = ()
        from_potential = ()
        from_operand = ()
        for ahead in tl.static_range(SEGMENT):
            here = first + (start + ahead) * size
            live = inside & (start + ahead < STEPS)
            xs = xs + (tl.load(x_ptr + here + offset, mask=live, other=0.0),)
            if grad_spikes_ptr is not None:
                from_spikes = from_spikes + (tl.load(grad_spikes_ptr + here + offset, mask=live, other=0.0),)
            if grad_potential_ptr is not None:
                from_potential = from_potential + (tl.load(grad_potential_ptr + here + offset, mask=live, other=0.0),)
            if grad_operand_ptr is not None:
                from_operand = from_operand + (tl.load(grad_operand_ptr + here + offset, mask=live, other=0.0),)
        products = ()  # from the segment's last step to its first
        reals = (real,)
        imags = (imag,)
        for ahead in tl.static_range(SEGMENT - 1):
            live = inside & (start + ahead < STEPS)
            x = normed(xs[ahead], scale_ptr, shift_ptr, (start + ahead) * CHANNELS + lanes, live)
            _, _, real, imag = fire_step(
                x, real, imag, decay, rotation, gain, threshold, sharpness, RESONATING, RELAXED
            )
            reals = reals + (real,)
            imags = imags + (imag,)
        for ahead in tl.static_range(SEGMENT - 1, -1, -1):
            t = start + ahead
            live = inside & (t < STEPS)
            x = normed(xs[ahead], scale_ptr, shift_ptr, t * CHANNELS + lanes, live)
            real = reals[ahead]
            imag = imags[ahead]
            spike, potential, _, _ = fire_step(
                x, real, imag, decay, rotation, gain, threshold, sharpness, RESONATING, RELAXED
            )
            grad_spike = zeros
            if grad_spikes_ptr is not None:
                grad_spike = from_spikes[ahead].to(tl.float32)
            if grad_operand_ptr is not None:
                now = from_operand[ahead].to(tl.float32)
                if FILTERED:
                    grad_spike += now + coefficient * (now - later)
                    coefficient_sum += spike * (now - later)
                    later = now
                else:
                    grad_spike += now
            grad_potential = zeros
            if grad_potential_ptr is not None:
                grad_potential = from_potential[ahead].to(tl.float32)
            imag_after = grad_imag
            grad_charged, grad_threshold, grad_real, grad_imag = fire_step_gradient(
                spike,
                potential,
                grad_spike,
                grad_potential,
                grad_real,
                grad_imag,
                decay,
                rotation,
                threshold,
                sharpness,
                RESONATING,
                RELAXED,
            )
            threshold_sum += grad_threshold
            decay_sum += real * grad_charged
            if RESONATING:
                decay_sum += imag * imag_after
                rotation_sum += real * imag_after - imag * grad_charged
            grad_x = gain * grad_charged
            raw = xs[ahead].to(tl.float32)
            if scale_ptr is None:
                gain_sum += raw * grad_charged
            else:
                products = products + (tl.join(raw * grad_charged, grad_charged),)
                grad_x *= tl.load(scale_ptr + t * CHANNELS + lanes, mask=live, other=0.0)
            tl.store(grad_x_ptr + (first + t * size) + offset, grad_x.to(grad_x_ptr.dtype.element_ty), mask=live)
        if scale_ptr is not None:  # one reduction for the whole segment: each one synchronizes the warps
            joined = products[0]
            if SEGMENT == 2:
                joined = tl.join(products[0], products[1])
            if SEGMENT == 4:
                joined = tl.join(tl.join(products[0], products[2]), tl.join(products[1], products[3]))
            joined = tl.reshape(tl.sum(joined, 0), [COLUMNS, 2 * SEGMENT])
            lane = tl.arange(0, 2 * SEGMENT)
            t = start + (SEGMENT - 1) - lane % SEGMENT
            offsets = (row_block * STEPS + t[None, :]) * CHANNELS + channel[:, None]
            tl.store(step_sums_ptr + 2 * offsets + lane // SEGMENT, joined, mask=known[:, None] & (t < STEPS)[None, :])

    SLOTS: tl.constexpr = 2 + PARTS + FILTERED
    sums = channel_sums_ptr + row_block * SLOTS * CHANNELS + channel
    tl.store(sums, tl.sum(decay_sum, 0), mask=known)
    tl.store(sums + CHANNELS, tl.sum(gain_sum, 0), mask=known)
    tl.store(sums + 2 * CHANNELS, tl.sum(threshold_sum, 0), mask=known)
    if RESONATING:
        tl.store(sums + 3 * CHANNELS, tl.sum(rotation_sum, 0), mask=known)
    if FILTERED:
        tl.store(sums + (2 + PARTS) * CHANNELS, tl.sum(coefficient_sum, 0), mask=known)


@triton.jit
def norm_fire_parameters_kernel(
    channel_sums_ptr, step_sums_ptr, scale_ptr, shift_ptr, gain_ptr, grad_scale_ptr, grad_shift_ptr, grad_decay_ptr,
    grad_rotation_ptr, grad_gain_ptr, grad_threshold_ptr, grad_coefficient_ptr,
    STEPS: tl.constexpr, CHANNELS: tl.constexpr, STEP_LANES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The parameters' gradients from the sums over all programs; absent ones are None."""
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = channel < CHANNELS
    sums = channel_sums_ptr + channel
    tl.store(grad_decay_ptr + channel, tl.load(sums, mask=known), mask=known)
    tl.store(grad_threshold_ptr + channel, tl.load(sums + 2 * CHANNELS, mask=known), mask=known)
    if grad_rotation_ptr is not None:
        tl.store(grad_rotation_ptr + channel, tl.load(sums + 3 * CHANNELS, mask=known), mask=known)
        sums += CHANNELS
    if grad_coefficient_ptr is not None:
        tl.store(grad_coefficient_ptr + channel, tl.load(sums + 3 * CHANNELS, mask=known), mask=known)
    grad_gain = tl.load(channel_sums_ptr + CHANNELS + channel, mask=known)
    if scale_ptr is not None:
        step = tl.arange(0, STEP_LANES)
        offsets = step[:, None] * CHANNELS + channel[None, :]
        live = (step < STEPS)[:, None] & known[None, :]
        gain = tl.load(gain_ptr + channel, mask=known)[None, :]
        with_x = tl.load(step_sums_ptr + 2 * offsets, mask=live, other=0.0)
        without_x = tl.load(step_sums_ptr + 2 * offsets + 1, mask=live, other=0.0)
        tl.store(grad_scale_ptr + offsets, gain * with_x, mask=live)
        tl.store(grad_shift_ptr + offsets, gain * without_x, mask=live)
        scale = tl.load(scale_ptr + offsets, mask=live, other=0.0)
        shift = tl.load(shift_ptr + offsets, mask=live, other=0.0)
        grad_gain += tl.sum(scale * with_x + shift * without_x, 0)
    tl.store(grad_gain_ptr + channel, grad_gain, mask=known)
