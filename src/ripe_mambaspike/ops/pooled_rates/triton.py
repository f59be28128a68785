# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Pooled cumulative rates on a GPU: one pass over the spikes of a scale, one over the gradient.

Along an axis of `size` pixels, cell i of `cells` covers the pixels ⌊i·size/cells⌋ … ⌈(i+1)·size/cells⌉ − 1; the cells
that cover a pixel follow from the same formula with pixels and cells swapped.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.norm_fire.triton_step import initial, store_final
from ripe_mambaspike.ops.pooled_rates import PooledRatesBackwardInputs, PooledRatesInputs, empty_pooled_rates
from ripe_mambaspike.ops.triton_launch import ceil_div, next_power_of_2

TILE = 512  # elements per program
POOL_WARPS = 2
PIXELS_PER_READ = 16  # pixels of a cell read at once


@triton.jit
def first_of(index, size, cells):
    return index * size // cells


@triton.jit
def end_of(index, size, cells):
    return ((index + 1) * size + cells - 1) // cells


@triton.jit
def pool_kernel(
    spikes_ptr, out_ptr,
    STEPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, OFFSET: tl.constexpr, ALL: tl.constexpr, TALL: tl.constexpr, SPAN: tl.constexpr,
    READ_ROWS: tl.constexpr, READ_COLUMNS: tl.constexpr, CELLS: tl.constexpr, BLOCK: tl.constexpr,
    PACKED: tl.constexpr, EVEN: tl.constexpr,
    count_ptr=None, first_step_ptr=None, final_ptr=None,
):  # fmt: skip
    """A block of one sample's cells and channels over all steps.

    spikes [B, T, H, W, C], or with PACKED = 4 [B, T, H, W, C / 4] of four bytes each; out [B, T, rows, columns, ALL],
    where this scale's channels begin at OFFSET. TALL × SPAN: the largest cell, READ_ROWS × READ_COLUMNS: pixels of it
    read at once (`read_sizes`). EVEN: all cells have the same size and no masks are needed.
    State: count [B, rows, columns, C] float32, the spikes before first_step [B] averaged over the cells, and the output
    for the count after the last step; each may be None.

    Four bytes are summed as one integer, four channels per instruction; no cell has enough pixels for a carry.
    Compiled without fused multiply-adds, so that an unchanged rate has a change of exactly zero.
    """
    sample = tl.program_id(2).to(tl.int64)
    cell = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row, column = cell // COLUMNS, cell % COLUMNS
    top, left = first_of(row, HEIGHT, ROWS), first_of(column, WIDTH, COLUMNS)
    bottom, end = end_of(row, HEIGHT, ROWS), end_of(column, WIDTH, COLUMNS)
    share = (1.0 / ((bottom - top) * (end - left)).to(tl.float32))[:, None]
    wanted = EVEN | ((cell < ROWS * COLUMNS)[:, None] & (channel < CHANNELS)[None, :])
    word = tl.program_id(1) * (BLOCK // PACKED) + tl.arange(0, BLOCK // PACKED)
    read = EVEN | ((cell < ROWS * COLUMNS)[:, None] & (word < CHANNELS // PACKED)[None, :])
    corner = ((top * WIDTH + left) * (CHANNELS // PACKED))[:, None] + word[None, :]
    written = cell[:, None] * ALL + OFFSET + channel[None, :]
    owned = sample * (ROWS * COLUMNS * CHANNELS) + cell[:, None] * CHANNELS + channel[None, :]
    total = initial(count_ptr, owned, wanted)
    before = tl.zeros([CELLS, BLOCK], tl.float32)
    first = 0
    if first_step_ptr is not None:
        first = tl.load(first_step_ptr + sample)
        before = tl.where(first > 0, total * tl.div_rn(1.0, tl.maximum(first, 1).to(tl.float32)), 0.0)
    for step in range(STEPS):
        moment = sample * STEPS + step
        image = spikes_ptr + moment * (HEIGHT * WIDTH * (CHANNELS // PACKED)) + corner
        found = tl.zeros([CELLS, BLOCK // PACKED], tl.int32 if PACKED > 1 else tl.float32)
        for above in range(0, TALL, READ_ROWS):
            for beside in range(0, SPAN, READ_COLUMNS):
                for inner in tl.static_range(READ_ROWS * READ_COLUMNS):
                    down, across = above + inner // READ_COLUMNS, beside + inner % READ_COLUMNS
                    inside = read & (EVEN | ((top + down < bottom) & (left + across < end))[:, None])
                    here = tl.load(image + (down * WIDTH + across) * (CHANNELS // PACKED), mask=inside, other=0)
                    found += here.to(found.dtype)
        if PACKED > 1:
            counts = (found[:, :, None] >> (8 * tl.arange(0, PACKED))[None, None, :]) & 255
            found = tl.reshape(counts, [CELLS, BLOCK]).to(tl.float32)
        total += found * share
        rate = total * tl.div_rn(1.0, (first + step + 1) * 1.0)
        offsets = moment * (ROWS * COLUMNS * ALL) + written
        tl.store(out_ptr + offsets, rate.to(out_ptr.dtype.element_ty), mask=wanted)
        tl.store(out_ptr + offsets + CHANNELS, (rate - before).to(out_ptr.dtype.element_ty), mask=wanted)
        before = rate
    store_final(final_ptr, owned, total, wanted)


@triton.jit
def spread_kernel(
    grad_ptr, out_ptr,
    STEPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, OFFSET: tl.constexpr, ALL: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    PIXELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of one sample's pixels and channels, from the last step to the first.

    grad [B, T, rows, columns, ALL], out [B, T, H, W, C]. DOWN, ACROSS: the most cells that cover a pixel on each axis.
    """
    sample = tl.program_id(2).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y, x = pixel // WIDTH, pixel % WIDTH
    wanted = (pixel < HEIGHT * WIDTH)[:, None] & (channel < CHANNELS)[None, :]
    total = tl.zeros([PIXELS, BLOCK], tl.float32)
    after = tl.zeros([PIXELS, BLOCK], tl.float32)
    for back in range(STEPS):
        step = STEPS - 1 - back
        moment = sample * STEPS + step
        rates = tl.zeros([PIXELS, BLOCK], tl.float32)
        changes = tl.zeros([PIXELS, BLOCK], tl.float32)
        for below in tl.static_range(DOWN):
            for beyond in tl.static_range(ACROSS):
                row, column = first_of(y, ROWS, HEIGHT) + below, first_of(x, COLUMNS, WIDTH) + beyond
                covers = (row < end_of(y, ROWS, HEIGHT)) & (column < end_of(x, COLUMNS, WIDTH))
                tall = end_of(row, HEIGHT, ROWS) - first_of(row, HEIGHT, ROWS)
                wide = end_of(column, WIDTH, COLUMNS) - first_of(column, WIDTH, COLUMNS)
                offsets = (
                    (moment * (ROWS * COLUMNS) + row * COLUMNS + column)[:, None] * ALL + OFFSET + channel[None, :]
                )
                given = wanted & covers[:, None]
                area = (tall * wide).to(tl.float32)[:, None]
                rates += tl.load(grad_ptr + offsets, mask=given, other=0.0).to(tl.float32) / area
                changes += tl.load(grad_ptr + offsets + CHANNELS, mask=given, other=0.0).to(tl.float32) / area
        # the rate at this step enters the output, its own change, and (negatively) the next change
        total += (rates + changes - after) / (step + 1)
        after = changes
        offsets = (moment * (HEIGHT * WIDTH) + pixel)[:, None] * CHANNELS + channel[None, :]
        tl.store(out_ptr + offsets, total.to(out_ptr.dtype.element_ty), mask=wanted)


def pooled_rates(i: PooledRatesInputs) -> tuple[Tensor, list[Tensor]]:
    spikes, rows, columns = i.spikes, i.rows, i.columns
    out, finals = empty_pooled_rates(i)
    samples, steps = spikes[0].shape[:2]
    channels = out.shape[-1]
    offset = 0
    first_step = None if i.first_step is None else i.first_step.contiguous()
    for index, one in enumerate(spikes):
        height, width, wide = one.shape[2:]
        tall, span = most_covered(height, rows), most_covered(width, columns)
        block = min(64, next_power_of_2(wide))
        cells = min(next_power_of_2(rows * columns), TILE // block)
        grid = (ceil_div(rows * columns, cells), ceil_div(wide, block), samples)
        sizes = read_sizes(tall, span)
        even = not (height % rows or width % columns or tall % sizes[0] or span % sizes[1])
        even = even and not (rows * columns % cells or wide % block)
        given, packed = one.contiguous(), 1
        if one.dtype == torch.uint8 and wide % 4 == 0 and tall * span < 256 and given.storage_offset() % 4 == 0:
            given, packed = given.view(torch.int32), 4
        pool_kernel[grid](
            given, out, steps, height, width, wide, rows, columns, offset, channels,
            tall, span, *sizes, cells, block, packed, even,
            i.counts[index].contiguous() if i.counts else None, first_step,
            finals[index] if finals else None, num_warps=POOL_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        offset += 2 * wide
    return out, finals


def pooled_rates_backward(i: PooledRatesBackwardInputs) -> list[Tensor]:
    """The gradient [B, T, rows, columns, 2 ΣC_i] distributed to the spikes of every scale, in its dtype."""
    grad = i.grad.contiguous()
    samples, steps, rows, columns, every = grad.shape
    out, offset = [], 0
    for wide, height, width in zip(i.channels, i.heights, i.widths, strict=True):
        one = grad.new_empty(samples, steps, height, width, wide)
        block = min(64, next_power_of_2(wide))
        pixels = min(next_power_of_2(height * width), TILE // block)
        grid = (ceil_div(height * width, pixels), ceil_div(wide, block), samples)
        spread_kernel[grid](
            grad, one, steps, height, width, wide, rows, columns, offset, every,
            most_covered(rows, height), most_covered(columns, width), pixels, block, num_warps=4,
        )  # fmt: skip
        out.append(one)
        offset += 2 * wide
    return out


def most_covered(size: int, cells: int) -> int:
    """The largest number of the `size` pixels that one cell covers."""
    return max(-(-(index + 1) * size // cells) - index * size // cells for index in range(cells))


def read_sizes(tall: int, span: int) -> tuple[int, int]:
    """How many rows and columns of a cell of at most tall × span pixels are read at once.

    Constants, so that the kernels divide no loop variable: compiled for one grid (13 → 2), such a division went wrong.
    """
    columns = min(span, PIXELS_PER_READ)
    return min(tall, PIXELS_PER_READ // columns), columns
