# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The attention's gradient if one program holds all channels: two passes over the positions, nothing stored between.

With the centred mixture M (see triton_mix) and D = dA / denominator, dφ(Q) = D Mᵀ − (D·(A − c)) kᵀ: a difference
taken before anything is rounded. The key side waits for the sums dM = φ(Q)ᵀ D over all positions.
"""

import triton
import triton.language as tl

from ripe_mambaspike.ops.membrane_attention.triton_tiles import (
    load_affine,
    load_matrix,
    load_row,
    load_tile,
    positive,
    quotient,
    store_matrix,
    store_row,
    store_tile,
)
from ripe_mambaspike.ops.triton_launch import Synchronous


@triton.jit
def _place(steps, positions, C: tl.constexpr):
    """What this program computes: a chunk of a pair of sample and step.

    (pair, chunk, step, the pair's index among those of later steps, the offset of the pair's first element).
    """
    pair = tl.program_id(0)
    later = pair - pair // steps - 1
    return pair, tl.program_id(1), pair % steps, later, pair.to(tl.int64) * positions * C


@Synchronous
@triton.jit
def query_side(
    potential, features, scale, shift, query, gain, mixed, sums, grad_out, grad_attention,
    grad_potential, grad_features, affine_sums, channel_sums, grad_mixed, grad_query, steps, positions,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
    AFFINE: tl.constexpr, OUT: tl.constexpr, ATTENTION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A chunk of a step: grad_features, the query's part of grad_potential, and partial sums over its positions.

    affine_sums [B·T, chunks, 2, C]: scale, shift. Of later steps: channel_sums [pairs, chunks, 2, C]: γ and k;
    grad_mixed and grad_query [pairs, chunks, C, C].
    """
    pair, chunk, step, later, base = _place(steps, positions, C)
    channels = tl.arange(0, WIDTH)
    by_scale = tl.zeros([WIDTH], tl.float32)
    by_shift = tl.zeros([WIDTH], tl.float32)
    if step == 0:
        for index in range(SPAN):
            rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
            incoming = _load_gradient(grad_out, base, rows, positions, channels, C, BLOCK, WIDTH, OUT)
            if AFFINE:
                x = load_tile(features + base, rows, positions, channels, C).to(tl.float32)
                by_scale += tl.sum(incoming * x, 1)
                by_shift += tl.sum(incoming, 1)
            scale_row, _ = load_affine(scale, shift, step, channels, C, AFFINE)
            store_tile(grad_features + base, rows, positions, channels, incoming * scale_row[:, None], C)
    else:
        weight = load_matrix(query, channels, channels, C)
        mixture = load_matrix(mixed + later.to(tl.int64) * C * C, channels, channels, C)
        by_gain = tl.zeros([WIDTH], tl.float32)
        by_key_sum = tl.zeros([WIDTH], tl.float32)
        by_mixed = tl.zeros([WIDTH, WIDTH], tl.float32)
        by_query = tl.zeros([WIDTH, WIDTH], tl.float32)
        for index in range(SPAN):
            rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
            u = load_tile(potential + base, rows, positions, channels, C)
            phi = positive(tl.dot(weight, u, input_precision=PRECISION))
            rounded = phi.to(u.dtype)
            numerator = tl.dot(tl.trans(mixture), rounded, input_precision=PRECISION)
            key_sum = load_row(sums + later * 3 * C, channels, C)  # read again each time: registers are scarce
            center = load_row(sums + (later * 3 + 2) * C, channels, C)
            centered, denominator = quotient(numerator, phi, key_sum, center)
            attention = center[:, None] + centered

            x = load_tile(features + base, rows, positions, channels, C).to(tl.float32)
            scale_row, shift_row = load_affine(scale, shift, step, channels, C, AFFINE)
            gain_row = load_row(gain, channels, C)
            normed = x * scale_row[:, None] + shift_row[:, None]
            incoming = _load_gradient(grad_out, base, rows, positions, channels, C, BLOCK, WIDTH, OUT)
            by_x = incoming * (1.0 + gain_row[:, None] * attention)
            if AFFINE:
                by_scale += tl.sum(by_x * x, 1)
                by_shift += tl.sum(by_x, 1)
            store_tile(grad_features + base, rows, positions, channels, by_x * scale_row[:, None], C)
            by_product = incoming * normed
            by_gain += tl.sum(by_product * attention, 1)

            by_attention = gain_row[:, None] * by_product
            by_attention += _load_gradient(grad_attention, base, rows, positions, channels, C, BLOCK, WIDTH, ATTENTION)
            by_numerator = by_attention / denominator[None, :]
            by_denominator = -tl.sum(by_numerator * centered, 0)
            by_key_sum += tl.sum(phi * by_denominator[None, :], 1)
            by_numerator_rounded = by_numerator.to(u.dtype)
            by_mixed = tl.dot(rounded, tl.trans(by_numerator_rounded), by_mixed, input_precision=PRECISION)
            by_phi = tl.dot(mixture, by_numerator_rounded, input_precision=PRECISION)
            by_phi += by_denominator[None, :] * key_sum[:, None]
            by_z = (by_phi * tl.minimum(phi, 1.0)).to(u.dtype)
            by_query = tl.dot(by_z, tl.trans(u), by_query, input_precision=PRECISION)
            by_u = tl.dot(tl.trans(weight), by_z, input_precision=PRECISION)
            store_tile(grad_potential + base, rows, positions, channels, by_u, C)
        slot = later.to(tl.int64) * tl.num_programs(1) + chunk
        store_row(channel_sums + slot * 2 * C, channels, by_gain, C)
        store_row(channel_sums + (slot * 2 + 1) * C, channels, by_key_sum, C)
        store_matrix(grad_mixed + slot * C * C, channels, channels, by_mixed, C)
        store_matrix(grad_query + slot * C * C, channels, channels, by_query, C)
    if AFFINE:
        slot = pair.to(tl.int64) * tl.num_programs(1) + chunk
        store_row(affine_sums + slot * 2 * C, channels, by_scale, C)
        store_row(affine_sums + (slot * 2 + 1) * C, channels, by_shift, C)


@Synchronous
@triton.jit
def key_side(
    potential, spikes, key, sums, grad_gathered, grad_key_sum, grad_potential, grad_spikes, grad_key, steps, positions,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A chunk of a step: the key's part added to grad_potential, the gradient of the spikes before, partial grad_key.

    grad_gathered [pairs, C, C], grad_key_sum [pairs, C] and grad_key [pairs, chunks, C, C] are of later steps. The
    first step's programs write zero gradients for the first step's potential and the last step's spikes.
    """
    pair, chunk, step, later, base = _place(steps, positions, C)
    channels = tl.arange(0, WIDTH)
    if step == 0:
        nothing = tl.zeros([WIDTH, BLOCK], tl.float32)
        end = (pair + steps - 1).to(tl.int64) * positions * C
        for index in range(SPAN):
            rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
            store_tile(grad_potential + base, rows, positions, channels, nothing, C)
            store_tile(grad_spikes + end, rows, positions, channels, nothing, C)
    else:
        before = (pair - 1).to(tl.int64) * positions * C
        weight = load_matrix(key, channels, channels, C)
        by_gathered = load_matrix(grad_gathered + later.to(tl.int64) * C * C, channels, channels, C)
        by_key_sum = load_row(grad_key_sum + later * C, channels, C)
        rates = load_row(sums + (later * 3 + 1) * C, channels, C)
        by_key = tl.zeros([WIDTH, WIDTH], tl.float32)
        for index in range(SPAN):
            rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
            u = load_tile(potential + base, rows, positions, channels, C)
            s = load_tile(spikes + before, rows, positions, channels, C).to(tl.float32)
            around = (s - rates[:, None]).to(u.dtype)  # as in the centred mixture
            phi = positive(tl.dot(weight, u, input_precision=PRECISION))
            by_s = tl.dot(tl.trans(by_gathered), phi.to(u.dtype), input_precision=PRECISION)
            store_tile(grad_spikes + before, rows, positions, channels, by_s, C)
            by_phi = tl.dot(by_gathered, around, input_precision=PRECISION) + by_key_sum[:, None]
            by_z = (by_phi * tl.minimum(phi, 1.0)).to(u.dtype)
            by_key = tl.dot(by_z, tl.trans(u), by_key, input_precision=PRECISION)
            by_u = load_tile(grad_potential + base, rows, positions, channels, C).to(tl.float32)
            by_u = tl.dot(tl.trans(weight), by_z, by_u, input_precision=PRECISION)
            store_tile(grad_potential + base, rows, positions, channels, by_u, C)
        slot = later.to(tl.int64) * tl.num_programs(1) + chunk
        store_matrix(grad_key + slot * C * C, channels, channels, by_key, C)


@triton.jit
def _load_gradient(
    grad, base, rows, positions, channels,
    C: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PRESENT: tl.constexpr,
):  # fmt: skip
    """A tile of an output's gradient, zero if it has none."""
    if PRESENT:
        incoming = load_tile(grad + base, rows, positions, channels, C).to(tl.float32)
    else:
        incoming = tl.zeros([WIDTH, BLOCK], tl.float32)
    return incoming
