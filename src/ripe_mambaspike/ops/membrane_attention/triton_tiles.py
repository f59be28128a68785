# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Helpers shared by the attention's kernels: tiles of rows and channels, the positive feature, the quotient."""

import triton
import triton.language as tl

from ripe_mambaspike.ops.membrane_attention.reference import EPSILON

TINY = tl.constexpr(EPSILON)  # added to the denominator
LOG2_E = tl.constexpr(1.4426950408889634)
COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
# Four bytes 0 or 1 to bfloat16: each to the low byte of 16 bits, times the bits of one.
UNPACK = tl.constexpr(
    "{ .reg .b32 low, high; prmt.b32 low, $2, 0, 0x4140; prmt.b32 high, $2, 0, 0x4342;"
    " mul.lo.u32 $0, low, 0x3F80; mul.lo.u32 $1, high, 0x3F80; }"
)


@triton.jit
def load_tile(pointer, rows, limit, channels, C: tl.constexpr):
    """[channels, rows] of a [rows, C] tensor, zero beyond row `limit` and channel C.

    Transposed, because a thread of a tensor core holds few rows and many columns of a tile: per-channel values then
    take few registers.
    """
    mask = (channels < C)[:, None] & (rows < limit)[None, :]
    return tl.load(pointer + rows[None, :] * C + channels[:, None], mask=mask, other=0)


@triton.jit
def store_tile(pointer, rows, limit, channels, value, C: tl.constexpr):
    """Store a tile [channels, rows] where load_tile would read it.

    Eight elements at once, whatever their size: with sixteen bytes each, the compiler would compute everything twice,
    in the layout for floats and in the one for bytes.
    """
    mask = (channels < C)[:, None] & (rows < limit)[None, :]
    offsets = rows[None, :] * C + channels[:, None]
    if C % 8 == 0:
        offsets = tl.multiple_of(tl.max_contiguous(offsets, [8, 1]), [8, 1])
    tl.store(pointer + offsets, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def load_matrix(pointer, rows, columns, C: tl.constexpr):
    """[rows, columns] of a [C, C] matrix, zero beyond it."""
    mask = (rows < C)[:, None] & (columns < C)[None, :]
    return tl.load(pointer + rows[:, None] * C + columns[None, :], mask=mask, other=0)


@triton.jit
def store_matrix(pointer, rows, columns, value, C: tl.constexpr):
    mask = (rows < C)[:, None] & (columns < C)[None, :]
    tl.store(pointer + rows[:, None] * C + columns[None, :], value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def load_row(pointer, channels, C: tl.constexpr):
    return tl.load(pointer + channels, mask=channels < C, other=0).to(tl.float32)


@triton.jit
def store_row(pointer, channels, value, C: tl.constexpr):
    tl.store(pointer + channels, value, mask=channels < C)


@triton.jit
def mixture_of(pair, steps, SHIFTED: tl.constexpr):
    """The index of a step's mixture; without SHIFTED the first step of a sample has none."""
    if SHIFTED:
        index = pair
    else:
        index = pair - pair // steps - 1
    return index


@triton.jit
def is_first(step, SHIFTED: tl.constexpr):
    """Whether a step has no previous spikes."""
    if SHIFTED:
        first = step < 0
    else:
        first = step == 0
    return first


@triton.jit
def norm_row(pair, step, PER_SAMPLE: tl.constexpr):
    """The row of the affine norm's tables for a step of a sample."""
    if PER_SAMPLE:
        row = pair
    else:
        row = step
    return row


@triton.jit
def modulated(features, attention, scale, shift, gain):
    """X + γ A X with X from the features, float32; explicit products make every kernel round alike."""
    x = tl.fma(features, scale, shift)
    return tl.fma(gain * attention, x, x)


@triton.jit
def store_modulated(
    out, kept, rows, limit, channels, x, attention, scale, shift, gain, C: tl.constexpr, KEEP: tl.constexpr
):
    """A tile of X + γ A X, and of A with KEEP; scale, shift and gain [channels]."""
    result = modulated(x, attention, scale[:, None], shift[:, None], gain[:, None])
    store_tile(out, rows, limit, channels, result, C)
    if KEEP:
        store_tile(kept, rows, limit, channels, attention, C)


@triton.jit
def load_affine(scale, shift, step, channels, C: tl.constexpr, AFFINE: tl.constexpr):
    """(scale, shift) of a step; one and zero without a norm."""
    if AFFINE:
        by = load_row(scale + step * C, channels, C)
        to = load_row(shift + step * C, channels, C)
    else:
        by = tl.full(channels.shape, 1.0, tl.float32)
        to = tl.zeros(channels.shape, tl.float32)
    return by, to


@triton.jit
def spikes_like(s, u):
    """Spikes in u's dtype. Bytes become bfloat16 by bit operations, four at a time."""
    if s.dtype == tl.uint8 and u.dtype == tl.bfloat16:
        if COMPILED:
            numbers = tl.inline_asm_elementwise(UNPACK, "=r,=r,r", [s], dtype=tl.bfloat16, is_pure=True, pack=4)
        else:
            numbers = (s.to(tl.int16) * 0x3F80).to(tl.bfloat16, bitcast=True)
    else:
        numbers = s.to(u.dtype)
    return numbers


@triton.jit
def positive(z):
    """φ(z) = exp(min(z, 0)) + max(z, 0); its slope is min(φ, 1)."""
    return tl.exp2(tl.minimum(z, 0.0) * LOG2_E) + tl.maximum(z, 0.0)


@triton.jit
def quotient(numerator, query, key_sum, center):
    """(A − centre [C, rows], denominator [rows]) from M's part of the numerator and φ(Q); see attention_mix."""
    denominator = tl.sum(query * key_sum[:, None], 0) + TINY
    inverse = 1.0 / denominator  # one division per position instead of one per element
    return (numerator - TINY * center[:, None]) * inverse[None, :], denominator


@triton.jit
def attention_of(u, weight, mixture, key_sum, center, PRECISION: tl.constexpr):
    """A [C, rows] of potentials u [C, rows], with the query's weight."""
    phi = positive(tl.dot(weight, u, input_precision=PRECISION))
    numerator = tl.dot(tl.trans(mixture), phi.to(u.dtype), input_precision=PRECISION)
    centered, _ = quotient(numerator, phi, key_sum, center)
    return center[:, None] + centered
