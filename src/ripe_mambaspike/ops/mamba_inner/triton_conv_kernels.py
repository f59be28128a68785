# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The causal depthwise convolution of each direction, its silu, and the gradient of both.

Layout: inputs and grad_inputs [B, L, D, 2E] (the inner half comes first), weight [D, E, K], u [D, B, L, E].
Tokens are indexed in the order in which a direction visits them; direction 1 starts at the last.
"""

import triton
import triton.language as tl


@triton.jit
def inner_rows(inputs_ptr, index, reverse, length, stride, column, known, K: tl.constexpr, before_ptr=None, width=0):
    """The inner half of the tokens visited at `index` [rows, columns], zero outside the sequence.

    before_ptr: the K − 1 tokens before the first [K − 1, width].
    """
    token = tl.where(reverse, length - 1 - index, index)
    there = ((index >= 0) & (index < length))[:, None] & known[None, :]
    rows = tl.load(inputs_ptr + token[:, None] * stride + column[None, :], mask=there, other=0.0).to(tl.float32)
    if before_ptr is not None:
        earlier = ((index < 0) & (index > -K))[:, None] & known[None, :]
        state_offsets = (index + (K - 1))[:, None] * width + column[None, :]
        rows += tl.load(before_ptr + state_offsets, mask=earlier, other=0.0).to(tl.float32)
    return rows


@triton.jit
def convolved(
    inputs_ptr, weight_ptr, bias, index, reverse, length, stride, column, known, K: tl.constexpr, before_ptr, width
):
    """The convolution of the tokens `index` [rows, columns], before its silu."""
    out = tl.zeros([index.shape[0], column.shape[0]], tl.float32) + bias[None, :]
    for tap in tl.static_range(K):
        at = index + (tap - (K - 1))
        rows = inner_rows(inputs_ptr, at, reverse, length, stride, column, known, K, before_ptr, width)
        out += rows * tl.load(weight_ptr + column * K + tap, mask=known, other=0.0)[None, :]
    return out


@triton.jit
def conv_kernel(
    inputs_ptr,
    weight_ptr,
    bias_ptr,
    u_ptr,
    batch,
    length,
    directions,
    channels,
    blocks,
    GRADIENT: tl.constexpr,
    BIASED: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    before_ptr=None,  # the tokens before the first [B, K − 1, E], with one direction
):
    """u = silu(convolution + bias). GRADIENT: u_ptr holds u's gradient, which is replaced by the convolution's."""
    block, start = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    direction, sample = tl.program_id(1) // batch, (tl.program_id(1) % batch).to(tl.int64)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    known = column < channels
    index = start * ROWS + tl.arange(0, ROWS)
    reverse = direction == 1
    stride = directions * 2 * channels
    inputs_ptr += sample * length * stride + direction * 2 * channels
    if BIASED:
        bias = tl.load(bias_ptr + direction * channels + column, mask=known, other=0.0)
    else:
        bias = tl.zeros([COLUMNS], tl.float32)
    weight_ptr += direction * channels * K
    if before_ptr is not None:
        before_ptr += sample * (K - 1) * channels
    out = convolved(
        inputs_ptr, weight_ptr, bias, index, reverse, length, stride, column, known, K, before_ptr, channels
    )
    opened = tl.sigmoid(out)
    u_ptr += tl.program_id(1).to(tl.int64) * length * channels
    offsets = tl.where(reverse, length - 1 - index, index)[:, None] * channels + column[None, :]
    there = (index < length)[:, None] & known[None, :]
    if GRADIENT:
        grad = tl.load(u_ptr + offsets, mask=there, other=0.0).to(tl.float32)
        value = grad * opened * (1.0 + out * (1.0 - opened))
    else:
        value = out * opened
    tl.store(u_ptr + offsets, value.to(u_ptr.dtype.element_ty), mask=there)


@triton.jit
def conv_gradients_kernel(
    inputs_ptr, weight_ptr, grad_ptr, grad_inputs_ptr, sums_ptr, batch, length, directions, channels, blocks,
    segments,
    K: tl.constexpr, SUMS: tl.constexpr, SEGMENT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The inner half of grad_inputs, and a segment's own sums [D, B, segments, K + 1, E]: the taps', the bias's.

    grad_ptr holds the convolution's own gradient [D, B, L, E]. A token is seen by the K convolutions from its own on.
    SUMS is K + 1 or the next power of two.
    """
    block, part = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    direction, sample = tl.program_id(1) // batch, (tl.program_id(1) % batch).to(tl.int64)
    sequence = tl.program_id(1).to(tl.int64)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    known = column < channels
    reverse = direction == 1
    stride = directions * 2 * channels
    inputs_ptr += sample * length * stride + direction * 2 * channels
    grad_inputs_ptr += sample * length * stride + direction * 2 * channels
    grad_ptr += sequence * length * channels
    weight_ptr += direction * channels * K
    term = tl.arange(0, SUMS)[:, None]
    sums = tl.zeros([SUMS, COLUMNS], tl.float32)

    for offset in range(0, SEGMENT, ROWS):
        index = part * SEGMENT + offset + tl.arange(0, ROWS)
        grad_x = tl.zeros([ROWS, COLUMNS], tl.float32)
        for later in tl.static_range(K):
            seen = index + later
            there = (seen < length)[:, None] & known[None, :]
            offsets = tl.where(reverse, length - 1 - seen, seen)[:, None] * channels + column[None, :]
            grad = tl.load(grad_ptr + offsets, mask=there, other=0.0).to(tl.float32)
            grad_x += grad * tl.load(weight_ptr + column * K + (K - 1 - later), mask=known, other=0.0)[None, :]
            if later == 0:
                sums += tl.where(term == K, tl.sum(grad, 0)[None, :], 0.0)
                for tap in tl.static_range(K):
                    rows = inner_rows(inputs_ptr, index + (tap - (K - 1)), reverse, length, stride, column, known, K)
                    sums += tl.where(term == tap, tl.sum(grad * rows, 0)[None, :], 0.0)
        there = (index < length)[:, None] & known[None, :]
        token = tl.where(reverse, length - 1 - index, index)
        offsets = token[:, None] * stride + column[None, :]
        tl.store(grad_inputs_ptr + offsets, grad_x.to(grad_inputs_ptr.dtype.element_ty), mask=there)
    row = (sequence * segments + part) * (K + 1) * channels
    tl.store(sums_ptr + row + term * channels + column[None, :], sums, mask=(term < K + 1) & known[None, :])
