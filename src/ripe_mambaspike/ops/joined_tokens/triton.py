# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""On a GPU: spikes pooled step by step, and the outputs of the bridge's convolution summed over time.

Rows of both kernels run over all samples at once, so that no grid leaves a part of a program idle.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.joined_tokens import JoinedTokensInputs, PooledSpikesInputs
from ripe_mambaspike.ops.pooled_rates.triton import end_of, first_of, most_covered, read_sizes
from ripe_mambaspike.ops.row_norm import EPSILON
from ripe_mambaspike.ops.row_norm.triton import normalize
from ripe_mambaspike.ops.triton_launch import ceil_div, next_power_of_2

POOL_TILE = 1024  # elements per program: 16 bytes per thread
POOL_WARPS = 2
JOIN_TILE = 128  # positions × channels per program
JOIN_WARPS = 1
MIN_PROGRAMS = 512  # with fewer, the steps are split among programs too
STEPS_PER_READ = 8  # earlier steps summed at once


@triton.jit
def _pool_kernel(
    spikes_ptr, out_ptr, positions,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    OFFSET: tl.constexpr, ALL: tl.constexpr, TALL: tl.constexpr, SPAN: tl.constexpr, READ_ROWS: tl.constexpr,
    READ_COLUMNS: tl.constexpr, FULL: tl.constexpr, WHOLE: tl.constexpr, CELLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of cells and channels; the cells and the sizes are those of `pooled_rates`.

    spikes [images, H, W, C], out [images, rows, columns, ALL], positions = images · rows · columns. FULL: all cells
    have TALL × SPAN pixels, a multiple of those read at once. WHOLE: spikes are bytes.
    """
    position = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    image, cell = position // (ROWS * COLUMNS), position % (ROWS * COLUMNS)
    row, column = cell // COLUMNS, cell % COLUMNS
    top, bottom = first_of(row, HEIGHT, ROWS), end_of(row, HEIGHT, ROWS)
    left, right = first_of(column, WIDTH, COLUMNS), end_of(column, WIDTH, COLUMNS)
    wanted = (position < positions)[:, None] & (channel < CHANNELS)[None, :]
    corner = image.to(tl.int64) * (HEIGHT * WIDTH) + top * WIDTH + left
    if WHOLE:
        total = tl.zeros([CELLS, BLOCK], tl.int32)
    else:
        total = tl.zeros([CELLS, BLOCK], tl.float32)
    for above in range(0, TALL, READ_ROWS):
        for beside in range(0, SPAN, READ_COLUMNS):
            for inner in tl.static_range(READ_ROWS * READ_COLUMNS):
                down, across = above + inner // READ_COLUMNS, beside + inner % READ_COLUMNS
                inside = wanted
                if not FULL:
                    inside = wanted & ((top + down < bottom) & (left + across < right))[:, None]
                pixel = corner + down * WIDTH + across
                found = tl.load(spikes_ptr + pixel[:, None] * CHANNELS + channel[None, :], mask=inside, other=0)
                total += found.to(total.dtype)
    area = ((bottom - top) * (right - left)).to(tl.float32)
    mean = total.to(tl.float32) / area[:, None]
    offsets = position.to(tl.int64)[:, None] * ALL + OFFSET + channel[None, :]
    tl.store(out_ptr + offsets, mean.to(out_ptr.dtype.element_ty), mask=wanted)


@triton.jit
def _join_kernel(
    convolved_ptr,  # [B, T, P, 2d]
    attended_ptr,  # [B, T, P, d]
    bias_ptr,
    gain_ptr,
    shift_ptr,
    outer_gain_ptr,
    outer_shift_ptr,
    out_ptr,  # [B, T, P, d]
    positions,  # P
    rows,  # B · P
    epsilon,
    STEPS: tl.constexpr,
    SEGMENT: tl.constexpr,  # steps of a program
    BEFORE: tl.constexpr,  # most steps before them
    STEPS_PER_READ: tl.constexpr,
    COLUMNS: tl.constexpr,  # d
    WIDTH: tl.constexpr,  # d padded to a power of two
    ROWS: tl.constexpr,
):
    """Some positions with all their channels: the sums of the steps before, then step by step."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * SEGMENT
    column = tl.arange(0, WIDTH)[None, :]
    known = column < COLUMNS
    inside = (row < rows)[:, None] & known
    # of a position's first step
    start = ((row // positions).to(tl.int64) * (STEPS * positions) + row % positions)[:, None]
    bias = tl.load(bias_ptr + column, mask=known, other=0.0)
    gain = tl.load(gain_ptr + column, mask=known, other=0.0)
    shift = tl.load(shift_ptr + column, mask=known, other=0.0)
    outer_gain = tl.load(outer_gain_ptr + column, mask=known, other=0.0)
    outer_shift = tl.load(outer_shift_ptr + column, mask=known, other=0.0)
    rated = tl.zeros([ROWS, WIDTH], tl.float32)
    changed = tl.zeros([ROWS, WIDTH], tl.float32)
    for earlier in range(0, BEFORE, STEPS_PER_READ):
        for inner in tl.static_range(STEPS_PER_READ):
            step = earlier + inner
            past = inside & (step < first)
            offsets = (start + step * positions) * (2 * COLUMNS) + column
            rated += tl.load(convolved_ptr + offsets, mask=past, other=0.0).to(tl.float32)
            changed += tl.load(convolved_ptr + offsets + COLUMNS, mask=past, other=0.0).to(tl.float32)
    before = changed * (1.0 / tl.maximum(first, 1))
    for index in range(SEGMENT):
        step = first + index
        token = start + step * positions
        wanted = inside & (step < STEPS)
        offsets = token * (2 * COLUMNS) + column
        attended = tl.load(attended_ptr + token * COLUMNS + column, mask=wanted, other=0.0).to(tl.float32)
        rated += tl.load(convolved_ptr + offsets, mask=wanted, other=0.0).to(tl.float32)
        changed += tl.load(convolved_ptr + offsets + COLUMNS, mask=wanted, other=0.0).to(tl.float32)
        share = 1.0 / (step + 1)
        rate = changed * share
        mixed = rated * share + (rate - before) + bias
        before = rate
        inner, _ = normalize(mixed, COLUMNS, epsilon, known)
        outer, _ = normalize(inner * gain + shift + attended, COLUMNS, epsilon, known)
        tl.store(out_ptr + token * COLUMNS + column, outer * outer_gain + outer_shift, mask=wanted)


def pooled_spikes(i: PooledSpikesInputs) -> Tensor:
    spikes, like, rows, columns = i
    samples, steps = spikes[0].shape[:2]
    channels = sum(one.shape[-1] for one in spikes)
    out = torch.empty(samples, steps, rows, columns, channels, dtype=like.dtype, device=like.device)
    positions, offset = samples * steps * rows * columns, 0
    for one in spikes:
        height, width, wide = one.shape[2:]
        tall, span = most_covered(height, rows), most_covered(width, columns)
        sizes = read_sizes(tall, span)
        full = not (height % rows or width % columns or tall % sizes[0] or span % sizes[1])
        block = min(64, next_power_of_2(wide))
        cells = max(1, POOL_TILE // block)
        _pool_kernel[(ceil_div(positions, cells), ceil_div(wide, block))](
            one.contiguous(), out, positions, height, width, wide, rows, columns, offset, channels,
            tall, span, *sizes, full, one.dtype == torch.uint8, cells, block, num_warps=POOL_WARPS,
        )  # fmt: skip
        offset += wide
    return out


def joined_tokens(i: JoinedTokensInputs) -> Tensor:
    convolved, attended = i.convolved, i.attended
    vectors = (i.bias, i.weight, i.shift, i.outer_weight, i.outer_shift)
    samples, steps, positions, columns = attended.shape
    out = torch.empty_like(attended, dtype=torch.float32)
    width = next_power_of_2(columns)
    rows = max(1, JOIN_TILE // width)
    blocks = ceil_div(samples * positions, rows)
    segment = ceil_div(steps, min(steps, max(1, MIN_PROGRAMS // blocks)))
    segments = ceil_div(steps, segment)
    _join_kernel[(blocks, segments)](
        convolved, attended, *(vector.contiguous() for vector in vectors), out, positions, samples * positions, EPSILON,
        STEPS=steps, SEGMENT=segment, BEFORE=(segments - 1) * segment, STEPS_PER_READ=STEPS_PER_READ,
        COLUMNS=columns, WIDTH=width, ROWS=rows, num_warps=JOIN_WARPS,
    )  # fmt: skip
    return out
