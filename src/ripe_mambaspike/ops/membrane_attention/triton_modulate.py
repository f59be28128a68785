# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""X + γ A X, every step and block of positions on its own."""

import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.triton_mix import Mixture
from ripe_mambaspike.ops.membrane_attention.triton_plan import FLOAT32_PRODUCTS, plan
from ripe_mambaspike.ops.membrane_attention.triton_tiles import (
    load_affine,
    load_matrix,
    load_row,
    load_tile,
    positive,
    quotient,
    store_tile,
)
from ripe_mambaspike.ops.triton_launch import Synchronous


def modulate(
    potential: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    gain: Tensor,
    mixture: Mixture,
    keep_attention: bool,
) -> tuple[Tensor, Tensor]:
    """(modulated features, A or an empty tensor), potential and features [B, T, P, C]."""
    batch, steps, positions, channels = potential.shape
    out = features.new_empty(features.shape)
    attention = features.new_empty(features.shape if keep_attention else 0)
    affine = scale is not None and shift is not None
    cut = plan(batch * steps, potential, tile=8192)
    _modulate[batch * steps, cut.chunks](
        potential,
        features,
        scale if affine else gain,
        shift if affine else gain,
        query,
        gain,
        mixture.mixed,
        mixture.sums,
        out,
        attention,
        steps,
        positions,
        C=channels,
        WIDTH=cut.width,
        BLOCK=cut.block,
        SPAN=cut.span,
        AFFINE=affine,
        KEEP=keep_attention,
        PRECISION=FLOAT32_PRODUCTS,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return out, attention


@triton.jit
def modulated(features, attention, scale, shift, gain):
    """X + γ A X with X from the features, float32; products written out so that every kernel rounds alike."""
    x = tl.fma(features, scale, shift)
    return tl.fma(gain * attention, x, x)


@Synchronous
@triton.jit
def _modulate(
    potential,
    features,
    scale,
    shift,
    query,
    gain,
    mixed,
    sums,
    out,
    kept,
    steps,
    positions,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    AFFINE: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A chunk of a step's positions."""
    pair = tl.program_id(0)
    chunk = tl.program_id(1)
    step = pair % steps
    later = pair - pair // steps - 1  # among the steps that have spikes before them
    base = pair.to(tl.int64) * positions * C
    channels = tl.arange(0, WIDTH)
    scale_row, shift_row = load_affine(scale, shift, step, channels, C, AFFINE)
    gain_row = load_row(gain, channels, C)
    if step == 0:
        nothing = tl.zeros([WIDTH, BLOCK], tl.float32)
        for index in range(SPAN):
            rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
            x = load_tile(features + base, rows, positions, channels, C).to(tl.float32)
            result = modulated(x, nothing, scale_row[:, None], shift_row[:, None], gain_row[:, None])
            store_tile(out + base, rows, positions, channels, result, C)
            if KEEP:
                store_tile(kept + base, rows, positions, channels, nothing, C)
    else:
        weight = load_matrix(query, channels, channels, C)
        mixture = load_matrix(mixed + later.to(tl.int64) * C * C, channels, channels, C)
        key_sum = load_row(sums + later * 3 * C, channels, C)
        center = load_row(sums + (later * 3 + 2) * C, channels, C)
        for index in range(SPAN):
            rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
            u = load_tile(potential + base, rows, positions, channels, C)
            x = load_tile(features + base, rows, positions, channels, C).to(tl.float32)
            phi = positive(tl.dot(weight, u, input_precision=PRECISION))
            numerator = tl.dot(tl.trans(mixture), phi.to(u.dtype), input_precision=PRECISION)
            centered, _ = quotient(numerator, phi, key_sum, center)
            attention = center[:, None] + centered
            result = modulated(x, attention, scale_row[:, None], shift_row[:, None], gain_row[:, None])
            store_tile(out + base, rows, positions, channels, result, C)
            if KEEP:
                store_tile(kept + base, rows, positions, channels, attention, C)
