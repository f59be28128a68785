# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""X + γ A X and the neuron after it in one kernel: a program keeps its positions' state over all steps."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention import AttendFireInputs, empty_attend_fire
from ripe_mambaspike.ops.membrane_attention.triton_mix import KeyMixture
from ripe_mambaspike.ops.membrane_attention.triton_plan import FLOAT32_PRODUCTS, AttentionInputs, padded
from ripe_mambaspike.ops.membrane_attention.triton_tiles import (
    attention_of,
    load_affine,
    load_matrix,
    load_row,
    load_tile,
    modulated,
    norm_row,
    store_tile,
)
from ripe_mambaspike.ops.norm_fire.triton_step import as_stored, fire_step, initial, store_final
from ripe_mambaspike.ops.triton_launch import Synchronous, ceil_div, contiguous

MIN_PROGRAMS = 1024  # with fewer, the sequential loop over steps leaves the GPU idle
MAX_CHANNELS = 64  # wider programs have too few registers for the neurons' state


def fills_gpu(x: Tensor) -> bool:
    """Whether x [B, T, P, C] is narrow enough, and its samples and blocks of positions alone fill the GPU."""
    programs = x.shape[0] * ceil_div(x.shape[2], attention_block(x))
    return x.shape[3] <= MAX_CHANNELS and programs >= MIN_PROGRAMS


def attention_block(x: Tensor) -> int:
    """Positions of a program."""
    return 32 if x.dtype == torch.bfloat16 or x.shape[3] <= 32 else 16


def warps_for(x: Tensor) -> int:
    """Tuned by measurement: a warp per 32 channels, so that most of a step stays within it; two in float32."""
    return padded(x.shape[3]) // 16 if x.dtype == torch.float32 else ceil_div(padded(x.shape[3]), 32)


def modulate_fire(i: AttendFireInputs, given: AttentionInputs, mixture: KeyMixture) -> tuple[Tensor, ...]:
    """(spikes, operand, A or an empty tensor) [B, T, P, C] and the final state; `given`: what the kernels read of i."""
    features = given.features
    batch, steps, positions, channels = features.shape
    decay, rotation, drive, threshold, coefficient, relaxed, sharpness = i.firing
    outputs = empty_attend_fire(i)
    spikes, operand, attention, *finals = outputs
    block = attention_block(features)
    _modulate_fire[batch, ceil_div(positions, block)](
        *(given.potential, features, *given.affine(), given.query, given.gain, mixture.mixed, mixture.sums),
        *(decay, decay if rotation is None else rotation, drive, threshold),
        *(decay if coefficient is None else coefficient, sharpness),
        *(spikes, operand, attention, positions),
        *contiguous(*(i.initial_state or (None,) * 3)[:3]),
        *(one if one.numel() else None for one in finals),
        STEPS=steps,
        C=channels,
        WIDTH=padded(channels),
        BLOCK=block,
        RESONATING=rotation is not None,
        FILTERED=coefficient is not None,
        RELAXED=relaxed,
        KEEP=i.keep_attention,
        PRECISION=FLOAT32_PRODUCTS,
        num_warps=warps_for(features),
        num_stages=2,
        **given.modes(),
    )
    return outputs


@Synchronous
@triton.jit
def _modulate_fire(
    potential, features, scale, shift, query, gain, mixed, sums,
    decay, rotation, drive, threshold, coefficient, sharpness, spikes, operand, kept, positions,
    membrane, membrane_imag, last_spikes, final_membrane, final_imag, final_spikes,
    STEPS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, AFFINE: tl.constexpr,
    PER_SAMPLE: tl.constexpr, SHIFTED: tl.constexpr, RESONATING: tl.constexpr, FILTERED: tl.constexpr,
    RELAXED: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of positions of one sample through all steps."""
    sample = tl.program_id(0)
    rows = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channels = tl.arange(0, WIDTH)
    weight = load_matrix(query, channels, channels, C)
    owned = sample.to(tl.int64) * positions * C + rows[None, :] * C + channels[:, None]
    written = (channels < C)[:, None] & (rows < positions)[None, :]
    real = initial(membrane, owned, written)
    imag = initial(membrane_imag, owned, written)
    last = initial(last_spikes, owned, written)
    for step in range(STEPS):
        base = (sample.to(tl.int64) * STEPS + step) * positions * C
        if SHIFTED:
            held = channels
            later = sample * STEPS + step
            seen = positions
        else:
            # The first step has no mixture: with zeros for it (every index beyond the last) the attention is zero.
            held = tl.where(step > 0, channels, C)
            later = sample * (STEPS - 1) + step - 1
            seen = tl.where(step > 0, positions, 0)
        mixture = load_matrix(mixed + later.to(tl.int64) * C * C, held, channels, C)
        key_sum = load_row(sums + later * 3 * C, held, C)
        center = load_row(sums + (later * 3 + 2) * C, held, C)
        u = load_tile(potential + base, rows, seen, channels, C)
        x = load_tile(features + base, rows, positions, channels, C).to(tl.float32)
        attention = attention_of(u, weight, mixture, key_sum, center, PRECISION)
        if KEEP:
            store_tile(kept + base, rows, positions, channels, attention, C)
        table_row = norm_row(sample * STEPS + step, step, PER_SAMPLE)
        scale_row, shift_row = load_affine(scale, shift, table_row, channels, C, AFFINE)
        gain_row = load_row(gain, channels, C)[:, None]
        current = modulated(x, attention, scale_row[:, None], shift_row[:, None], gain_row)
        # Rounded as in the unfused path, which stores the features, so that the neuron fires at the same steps.
        current = current.to(operand.dtype.element_ty).to(tl.float32)
        decay_row = load_row(decay, channels, C)[:, None]
        rotation_row = load_row(rotation, channels, C)[:, None]
        drive_row = load_row(drive, channels, C)[:, None]
        threshold_row = load_row(threshold, channels, C)[:, None]
        spike, _, real, imag = fire_step(
            current, real, imag, decay_row, rotation_row, drive_row, threshold_row, sharpness, RESONATING, RELAXED
        )
        store_tile(spikes + base, rows, positions, channels, as_stored(spike, spikes, RELAXED), C)
        if FILTERED:
            coefficient_row = load_row(coefficient, channels, C)[:, None]
            filtered = (1.0 + coefficient_row) * spike - coefficient_row * last
        else:
            filtered = spike
        store_tile(operand + base, rows, positions, channels, filtered, C)
        last = spike
    store_final(final_membrane, owned, real, written)
    store_final(final_imag, owned, imag, written)
    store_final(final_spikes, owned, last, written)
