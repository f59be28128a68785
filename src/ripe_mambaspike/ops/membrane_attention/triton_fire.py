# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""X + γ A X and the neuron that reads it in one kernel: a program keeps its positions' state over all steps."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.triton_mix import Mixture
from ripe_mambaspike.ops.membrane_attention.triton_modulate import modulated
from ripe_mambaspike.ops.membrane_attention.triton_plan import FLOAT32_PRODUCTS, padded
from ripe_mambaspike.ops.membrane_attention.triton_tiles import (
    load_affine,
    load_matrix,
    load_row,
    load_tile,
    positive,
    quotient,
    store_tile,
)
from ripe_mambaspike.ops.norm_fire.triton_step import as_stored, fire_step
from ripe_mambaspike.ops.triton_launch import Synchronous

ENOUGH_PROGRAMS = 1024  # with fewer, walking through the steps one by one leaves the GPU idle
WIDEST = 64  # channels; wider programs have too few registers for the neurons' state


class Firing(NamedTuple):
    """The neuron, its reader's filter, and how it fires."""

    decay: Tensor
    rotation: Tensor | None
    drive: Tensor
    threshold: Tensor
    coefficient: Tensor | None
    relaxed: bool
    sharpness: float


def enough(x: Tensor) -> bool:
    """Whether x [B, T, P, C] is narrow enough, and its samples and blocks of positions alone fill the GPU."""
    programs = x.shape[0] * triton.cdiv(x.shape[2], block_for(x))
    return x.shape[3] <= WIDEST and programs >= ENOUGH_PROGRAMS


def block_for(x: Tensor) -> int:
    """Positions of a program."""
    return 32 if x.dtype == torch.bfloat16 or x.shape[3] <= 32 else 16


def warps_for(x: Tensor) -> int:
    """As measured: a warp for 32 channels, so that most of a step stays within a warp; without matrix units two."""
    return padded(x.shape[3]) // 16 if x.dtype == torch.float32 else triton.cdiv(padded(x.shape[3]), 32)


def modulate_fire(
    potential: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    gain: Tensor,
    mixture: Mixture,
    firing: Firing,
    keep_attention: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(spikes, operand, A or an empty tensor), potential and features [B, T, P, C]."""
    batch, steps, positions, channels = potential.shape
    decay, rotation, drive, threshold, coefficient, relaxed, sharpness = firing
    spikes = features.new_empty(features.shape, dtype=features.dtype if relaxed else torch.uint8)
    operand = features.new_empty(features.shape)
    attention = features.new_empty(features.shape if keep_attention else 0)
    affine = scale is not None and shift is not None
    width, block = padded(channels), block_for(features)
    _modulate_fire[batch, triton.cdiv(positions, block)](
        potential,
        features,
        scale if affine else gain,
        shift if affine else gain,
        query,
        gain,
        mixture.mixed,
        mixture.sums,
        decay,
        decay if rotation is None else rotation,
        drive,
        threshold,
        decay if coefficient is None else coefficient,
        sharpness,
        spikes,
        operand,
        attention,
        positions,
        STEPS=steps,
        C=channels,
        WIDTH=width,
        BLOCK=block,
        AFFINE=affine,
        RESONATING=rotation is not None,
        FILTERED=coefficient is not None,
        RELAXED=relaxed,
        KEEP=keep_attention,
        PRECISION=FLOAT32_PRODUCTS,
        num_warps=warps_for(features),
        num_stages=2,
    )
    return spikes, operand, attention


@Synchronous
@triton.jit
def _modulate_fire(
    potential,
    features,
    scale,
    shift,
    query,
    gain,
    mixed,
    sums,
    decay,
    rotation,
    drive,
    threshold,
    coefficient,
    sharpness,
    spikes,
    operand,
    kept,
    positions,
    STEPS: tl.constexpr,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    AFFINE: tl.constexpr,
    RESONATING: tl.constexpr,
    FILTERED: tl.constexpr,
    RELAXED: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A block of positions of one sample through all steps."""
    sample = tl.program_id(0)
    rows = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channels = tl.arange(0, WIDTH)
    weight = load_matrix(query, channels, channels, C)
    real = tl.zeros([WIDTH, BLOCK], tl.float32)
    imag = tl.zeros([WIDTH, BLOCK], tl.float32)
    last = tl.zeros([WIDTH, BLOCK], tl.float32)
    for step in range(STEPS):
        base = (sample.to(tl.int64) * STEPS + step) * positions * C
        # The first step has no mixture: with zeros for it (every index beyond the last) the attention is zero.
        held = tl.where(step > 0, channels, C)
        later = sample * (STEPS - 1) + step - 1
        mixture = load_matrix(mixed + later.to(tl.int64) * C * C, held, channels, C)
        key_sum = load_row(sums + later * 3 * C, held, C)
        center = load_row(sums + (later * 3 + 2) * C, held, C)
        u = load_tile(potential + base, rows, tl.where(step > 0, positions, 0), channels, C)
        x = load_tile(features + base, rows, positions, channels, C).to(tl.float32)
        phi = positive(tl.dot(weight, u, input_precision=PRECISION))
        numerator = tl.dot(tl.trans(mixture), phi.to(u.dtype), input_precision=PRECISION)
        centered, _ = quotient(numerator, phi, key_sum, center)
        attention = center[:, None] + centered
        if KEEP:
            store_tile(kept + base, rows, positions, channels, attention, C)
        scale_row, shift_row = load_affine(scale, shift, step, channels, C, AFFINE)
        gain_row = load_row(gain, channels, C)[:, None]
        current = modulated(x, attention, scale_row[:, None], shift_row[:, None], gain_row)
        # Rounded as it is where the modulated features are stored, so that the neuron fires at the same steps.
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
