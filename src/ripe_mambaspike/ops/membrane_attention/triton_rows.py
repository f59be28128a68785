# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Row-wise kernels between the attention's matrix products if those are computed by cuBLAS."""

import triton
import triton.language as tl

from ripe_mambaspike.ops.membrane_attention.triton_tiles import (
    load_affine,
    load_row,
    load_tile,
    norm_row,
    positive,
    quotient,
    store_modulated,
    store_row,
    store_tile,
)


@triton.jit
def apply_feature(
    x, sums, positions, C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, SUM: tl.constexpr
):
    """Replace x [pairs, P, C] by φ(x); sums [pairs, chunks, C] over the stored values."""
    pair = tl.program_id(0)
    chunk = tl.program_id(1)
    here = x + pair.to(tl.int64) * positions * C
    channels = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float32)
    for index in range(SPAN):
        rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
        phi = positive(load_tile(here, rows, positions, channels, C).to(tl.float32)).to(x.dtype.element_ty)
        store_tile(here, rows, positions, channels, phi, C)
        if SUM:
            total += tl.sum(tl.where((rows < positions)[None, :], phi.to(tl.float32), 0.0), 1)
    if SUM:
        store_row(sums + (pair.to(tl.int64) * tl.num_programs(1) + chunk) * C, channels, total, C)


@triton.jit
def center_spikes(
    spikes, rates, out, positions, C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr
):
    """out = spikes [pairs, P, C] − rates [pairs, C]."""
    pair = tl.program_id(0)
    base = pair.to(tl.int64) * positions * C
    channels = tl.arange(0, WIDTH)
    rate = load_row(rates + pair * C, channels, C)
    for index in range(SPAN):
        rows = (tl.program_id(1) * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
        s = load_tile(spikes + base, rows, positions, channels, C).to(tl.float32)
        store_tile(out + base, rows, positions, channels, s - rate[:, None], C)


@triton.jit
def modulate_rows(
    phi, numerator, key_sum, center, features, scale, shift, gain, out, kept, steps, positions,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, AFFINE: tl.constexpr,
    PER_SAMPLE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """X + γ A X from φ(Q) and its numerator."""
    pair = tl.program_id(0)
    base = pair.to(tl.int64) * positions * C
    channels = tl.arange(0, WIDTH)
    scale_row, shift_row = load_affine(scale, shift, norm_row(pair, pair % steps, PER_SAMPLE), channels, C, AFFINE)
    gain_row = load_row(gain, channels, C)
    key_row = load_row(key_sum + pair * C, channels, C)
    center_row = load_row(center + pair * C, channels, C)
    for index in range(SPAN):
        rows = (tl.program_id(1) * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
        query = load_tile(phi + base, rows, positions, channels, C).to(tl.float32)
        above = load_tile(numerator + base, rows, positions, channels, C).to(tl.float32)
        x = load_tile(features + base, rows, positions, channels, C).to(tl.float32)
        centered, _ = quotient(above, query, key_row, center_row)
        attention = center_row[:, None] + centered
        store_modulated(
            out + base, kept + base, rows, positions, channels, x, attention, scale_row, shift_row, gain_row, C, KEEP
        )


@triton.jit
def modulate_rows_gradient(
    phi, numerator, key_sum, center, features, scale, shift, gain,
    grad_out, grad_attention, grad_features, grad_denominator, affine_sums, channel_sums, steps, positions,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
    AFFINE: tl.constexpr, OUT: tl.constexpr, ATTENTION: tl.constexpr,
):  # fmt: skip
    """Replace the numerator by its gradient; the denominator's [pairs, P], grad_features, and partial sums.

    affine_sums [pairs, chunks, 2, C]: scale, shift; channel_sums the same: γ and k.
    """
    pair = tl.program_id(0)
    chunk = tl.program_id(1)
    base = pair.to(tl.int64) * positions * C
    channels = tl.arange(0, WIDTH)
    scale_row, shift_row = load_affine(scale, shift, pair % steps, channels, C, AFFINE)
    gain_row = load_row(gain, channels, C)
    key_row = load_row(key_sum + pair * C, channels, C)
    center_row = load_row(center + pair * C, channels, C)
    by_scale = tl.zeros([WIDTH], tl.float32)
    by_shift = tl.zeros([WIDTH], tl.float32)
    by_gain = tl.zeros([WIDTH], tl.float32)
    by_key_sum = tl.zeros([WIDTH], tl.float32)
    for index in range(SPAN):
        rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
        query = load_tile(phi + base, rows, positions, channels, C).to(tl.float32)
        above = load_tile(numerator + base, rows, positions, channels, C).to(tl.float32)
        x = load_tile(features + base, rows, positions, channels, C).to(tl.float32)
        centered, denominator = quotient(above, query, key_row, center_row)
        attention = center_row[:, None] + centered
        if OUT:
            incoming = load_tile(grad_out + base, rows, positions, channels, C).to(tl.float32)
        else:
            incoming = tl.zeros([WIDTH, BLOCK], tl.float32)
        by_x = incoming * (1.0 + gain_row[:, None] * attention)
        if AFFINE:
            by_scale += tl.sum(by_x * x, 1)
            by_shift += tl.sum(by_x, 1)
        store_tile(grad_features + base, rows, positions, channels, by_x * scale_row[:, None], C)
        by_product = incoming * (x * scale_row[:, None] + shift_row[:, None])
        by_gain += tl.sum(by_product * attention, 1)
        by_attention = gain_row[:, None] * by_product
        if ATTENTION:
            by_attention += load_tile(grad_attention + base, rows, positions, channels, C).to(tl.float32)
        by_numerator = by_attention / denominator[None, :]
        by_denominator = -tl.sum(by_numerator * centered, 0)
        by_key_sum += tl.sum(query * by_denominator[None, :], 1)
        store_tile(numerator + base, rows, positions, channels, by_numerator, C)
        tl.store(grad_denominator + pair.to(tl.int64) * positions + rows, by_denominator, mask=rows < positions)
    slot = pair.to(tl.int64) * tl.num_programs(1) + chunk
    if AFFINE:
        store_row(affine_sums + slot * 2 * C, channels, by_scale, C)
        store_row(affine_sums + (slot * 2 + 1) * C, channels, by_shift, C)
    store_row(channel_sums + slot * 2 * C, channels, by_gain, C)
    store_row(channel_sums + (slot * 2 + 1) * C, channels, by_key_sum, C)


@triton.jit
def feature_gradient(
    grad, phi, by_row, by_channel, positions,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """(grad + by_row [pairs, P] ⊗ by_channel [pairs, C]) φ' in place of grad; without ROWS by_row is one."""
    pair = tl.program_id(0)
    base = pair.to(tl.int64) * positions * C
    channels = tl.arange(0, WIDTH)
    added = load_row(by_channel + pair * C, channels, C)[:, None]
    for index in range(SPAN):
        rows = (tl.program_id(1) * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
        total = load_tile(grad + base, rows, positions, channels, C).to(tl.float32)
        if ROWS:
            row = tl.load(by_row + pair.to(tl.int64) * positions + rows, mask=rows < positions, other=0.0)
            total += row[None, :] * added
        else:
            total += added
        slope = tl.minimum(load_tile(phi + base, rows, positions, channels, C).to(tl.float32), 1.0)
        store_tile(grad + base, rows, positions, channels, total * slope, C)
