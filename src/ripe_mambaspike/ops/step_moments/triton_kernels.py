# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels of the norm's statistics: mean and variance of every step and channel of x [B, T, P, C]."""

import triton
import triton.language as tl


@triton.jit
def step_moments_kernel(
    x_ptr,
    partials_ptr,
    steps,
    positions,
    rows,
    per_split,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Mean and centred sum of squares of one step over one split of its rows (B·P), to partials [split, T, 2, C].

    Every lane keeps its own running mean (Welford), which subtracts before squaring; the lanes are joined once.
    """
    column_blocks = tl.cdiv(CHANNELS, COLUMNS)
    channel = (tl.program_id(0) % column_blocks) * COLUMNS + tl.arange(0, COLUMNS)
    t = (tl.program_id(0) // column_blocks) % steps
    split = tl.program_id(0) // column_blocks // steps
    known = channel < CHANNELS
    begin = split * per_split
    end = tl.minimum(begin + per_split, rows)

    seen = tl.zeros([ROWS, 1], tl.float32)
    mean = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    top = begin
    while top < end:
        row = top + tl.arange(0, ROWS)
        sample = row // positions
        offsets = (sample.to(tl.int64) * steps + t) * positions + (row - sample * positions)
        valid = (row < end)[:, None]
        live = valid & known[None, :]
        x = tl.load(x_ptr + offsets[:, None] * CHANNELS + channel[None, :], mask=live, other=0.0).to(tl.float32)
        seen += valid.to(tl.float32)
        delta = tl.where(live, x - mean, 0.0)
        mean += delta * (1.0 / tl.maximum(seen, 1.0))
        squares += delta * (x - mean)
        top += ROWS
    count = tl.maximum(end - begin, 1).to(tl.float32)
    joined = tl.sum(seen * mean, 0) / count
    apart = mean - joined[None, :]
    squares += seen * apart * apart
    out = partials_ptr + (split * steps + t) * 2 * CHANNELS + channel
    tl.store(out, joined, mask=known)
    tl.store(out + CHANNELS, tl.sum(squares, 0), mask=known)


@triton.jit
def join_moments_kernel(
    partials_ptr,
    mean_ptr,
    variance_ptr,
    splits,
    width,
    rows,
    per_split,
    CHANNELS: tl.constexpr,
    SPLITS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The splits' moments joined (Chan et al.) for some of the width = T·C steps and channels; SPLITS ≥ splits."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.arange(0, SPLITS)
    live = (split < splits)[:, None] & (column < width)[None, :]
    offsets = split[:, None] * (2 * width) + (column + column // CHANNELS * CHANNELS)[None, :]
    mean = tl.load(partials_ptr + offsets, mask=live, other=0.0)
    squares = tl.load(partials_ptr + offsets + CHANNELS, mask=live, other=0.0)
    count = tl.minimum(tl.maximum(rows - split * per_split, 0), per_split).to(tl.float32)[:, None]
    joined = tl.sum(count * mean, 0) / rows
    apart = mean - joined[None, :]
    total = tl.sum(tl.where(live, squares + count * apart * apart, 0.0), 0)
    tl.store(mean_ptr + column, joined, mask=column < width)
    tl.store(variance_ptr + column, total / rows, mask=column < width)


@triton.jit
def step_moments_backward_kernel(
    x_ptr,
    mean_ptr,
    grad_mean_ptr,
    grad_variance_ptr,
    grad_x_ptr,
    steps,
    size,
    rows,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`(grad_mean + 2 (x − mean) grad_variance) / rows` for a flat block of one step of one sample, size = P·C."""
    blocks = tl.cdiv(size, BLOCK)
    step = (tl.program_id(0) // blocks).to(tl.int64)  # of all B·T
    flat = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = flat < size
    offsets = (step % steps) * CHANNELS + flat % CHANNELS
    mean = tl.load(mean_ptr + offsets)
    grad_mean = tl.load(grad_mean_ptr + offsets)
    grad_variance = tl.load(grad_variance_ptr + offsets)
    x = tl.load(x_ptr + step * size + flat, mask=inside, other=0.0).to(tl.float32)
    grad_x = (grad_mean + 2.0 * (x - mean) * grad_variance) / rows
    tl.store(grad_x_ptr + step * size + flat, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
