# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, var-annotated"
"""Norm and neuron over time, forward. Tensors are [B, T, P, C]; a sample's step is a flat run of size = P·C.

Every program owns some elements of one sample and loops over the steps with their state in registers. PREFETCH steps
are loaded at a time, so that memory is busy while the recurrence is computed.
"""

import triton
import triton.language as tl

from ripe_mambaspike.ops.norm_fire.triton_step import as_stored, fire_step, initial, store_final


@triton.jit
def normed(x, scale_ptr, shift_ptr, offsets, live):
    """The neuron's input in float32 from a block of x: scaled and shifted where there is a norm."""
    x = x.to(tl.float32)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + offsets, mask=live, other=0.0)
        shift = tl.load(shift_ptr + offsets, mask=live, other=0.0)
        x = tl.fma(scale, x, shift)
    return x


@triton.jit
def norm_fire_kernel(
    x_ptr, scale_ptr, shift_ptr, decay_ptr, rotation_ptr, gain_ptr, threshold_ptr, coefficient_ptr, spikes_ptr,
    potential_ptr, operand_ptr, sharpness, size,
    STEPS: tl.constexpr, CHANNELS: tl.constexpr, RELAXED: tl.constexpr, PREFETCH: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr, PER_SAMPLE: tl.constexpr = False,
    membrane_ptr=None, membrane_imag_ptr=None, last_spikes_ptr=None, final_membrane_ptr=None, final_imag_ptr=None,
    final_spikes_ptr=None,
):  # fmt: skip
    """A flat block of one sample; an element's channel is its index modulo CHANNELS. Absent tensors are None.

    EVEN: blocks divide size and PREFETCH the steps, so there is nothing to mask. PER_SAMPLE: scale and shift are
    [B, T, C] instead of [T, C]. The last arguments are the state before the first step [B, P, C], float32, or None for
    zeros, and where to write the one after the last step, or None to leave it out.
    """
    RESONATING: tl.constexpr = rotation_ptr is not None
    blocks = tl.cdiv(size, BLOCK)
    # From the last sample to the first: the data written last, before this kernel and by it, is still in the cache.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    sample = (program // blocks).to(tl.int64)
    flat = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = flat < size
    channel = flat % CHANNELS
    decay = tl.load(decay_ptr + channel)
    gain = tl.load(gain_ptr + channel)
    threshold = tl.load(threshold_ptr + channel)
    rotation = decay
    if RESONATING:
        rotation = tl.load(rotation_ptr + channel)
    coefficient = decay
    if coefficient_ptr is not None:
        coefficient = tl.load(coefficient_ptr + channel)

    if PER_SAMPLE:
        scale_ptr += sample * STEPS * CHANNELS
        shift_ptr += sample * STEPS * CHANNELS

    owned = sample * size + flat
    real = initial(membrane_ptr, owned, inside)
    imag = initial(membrane_imag_ptr, owned, inside)
    before = initial(last_spikes_ptr, owned, inside)
    for start in range(0, STEPS, PREFETCH):
        base = (sample * STEPS + start) * size
        xs = ()
        for ahead in tl.static_range(PREFETCH):
            live = EVEN | (inside & (start + ahead < STEPS))
            xs = xs + (tl.load(x_ptr + (base + ahead * size) + flat, mask=live, other=0.0),)
        for ahead in tl.static_range(PREFETCH):
            live = EVEN | (inside & (start + ahead < STEPS))
            x = normed(xs[ahead], scale_ptr, shift_ptr, (start + ahead) * CHANNELS + channel, live)
            spike, potential, next_real, next_imag = fire_step(
                x, real, imag, decay, rotation, gain, threshold, sharpness, RESONATING, RELAXED
            )
            operand = spike
            if coefficient_ptr is not None:
                operand = (1.0 + coefficient) * spike - coefficient * before
            if final_membrane_ptr is not None and not EVEN:  # past the last step the state stays as it is
                real, imag = tl.where(live, next_real, real), tl.where(live, next_imag, imag)
                before = tl.where(live, spike, before)
            else:
                real, imag, before = next_real, next_imag, spike
            here = base + ahead * size
            tl.store(spikes_ptr + here + flat, as_stored(spike, spikes_ptr, RELAXED), mask=live)
            tl.store(operand_ptr + here + flat, operand.to(operand_ptr.dtype.element_ty), mask=live)
            if potential_ptr is not None:
                tl.store(potential_ptr + here + flat, potential.to(potential_ptr.dtype.element_ty), mask=live)
    store_final(final_membrane_ptr, owned, real, inside)
    store_final(final_imag_ptr, owned, imag, inside)
    store_final(final_spikes_ptr, owned, before, inside)
