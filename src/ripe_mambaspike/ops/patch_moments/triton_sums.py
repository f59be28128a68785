# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels that turn sums over pixels into the moments; few launches, which is what small images wait for.

`algebra.py` has the same in PyTorch, with the reasons for the terms at the borders.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.patch_moments.algebra import outputs
from ripe_mambaspike.ops.patch_moments.triton_kernels import DISPLACEMENTS, WINDOWS, correlations, products
from ripe_mambaspike.ops.triton_launch import ceil_div, next_power_of_2

TILE = 4096  # numbers that a program adds at a time
LINE_DISPLACEMENTS = 3


@triton.jit
def _add_parts(parts_ptr, splits, size, element, known, SPLITS: tl.constexpr, STEPS: tl.constexpr):
    """Σ parts[:, element] of parts [splits, size], in a fixed order."""
    each = tl.arange(0, SPLITS)
    total = tl.zeros([SPLITS, element.shape[0]], tl.float32)
    for step in range(STEPS):
        split = step * SPLITS + each
        place = split.to(tl.int64)[:, None] * size + element[None, :]
        total += tl.load(parts_ptr + place, mask=(split < splits)[:, None] & known[None, :], other=0.0)
    return tl.sum(total, 0)


@triton.jit
def add_correlations_kernel(
    whole_ptr,  # [splits, 13, C, C]
    borders_ptr,  # [splits, 8, 3, C, C]
    out_ptr,  # [13 + 8 · 3, C, C]
    whole_splits,
    border_splits,
    WHOLE: tl.constexpr,  # numbers in a part
    BORDERS: tl.constexpr,
    SPLITS: tl.constexpr,
    WHOLE_STEPS: tl.constexpr,
    BORDER_STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sums over the splits of both."""
    whole_blocks: tl.constexpr = (WHOLE + BLOCK - 1) // BLOCK
    block = tl.program_id(0)
    if block < whole_blocks:
        element = block * BLOCK + tl.arange(0, BLOCK)
        known = element < WHOLE
        total = _add_parts(whole_ptr, whole_splits, WHOLE, element, known, SPLITS, WHOLE_STEPS)
        tl.store(out_ptr + element, total, mask=known)
    else:
        element = (block - whole_blocks) * BLOCK + tl.arange(0, BLOCK)
        known = element < BORDERS
        total = _add_parts(borders_ptr, border_splits, BORDERS, element, known, SPLITS, BORDER_STEPS)
        tl.store(out_ptr + WHOLE + element, total, mask=known)


@triton.jit
def assemble_kernel(
    sums_ptr,  # [13 + 8 · 3, C, C]: Σ x_j(q + δ) x_i(q) of the whole image, then of its border lines and corners
    out_ptr,  # [9C, 9C]
    positions,
    DISPLACEMENTS: tl.constexpr,
    LINE: tl.constexpr,  # displacements of a line
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The mean of patch·patchᵀ at stride 1: a pair of taps meets in the displacement between them."""
    size: tl.constexpr = CHANNELS * CHANNELS
    one_tap, other_tap = tl.program_id(0) // 9, tl.program_id(0) % 9
    y, x = one_tap // 3, one_tap % 3
    down, right = other_tap // 3 - y, other_tap % 3 - x
    blocks: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    one = tl.program_id(1) // blocks * BLOCK + tl.arange(0, BLOCK)[:, None]
    other = tl.program_id(1) % blocks * BLOCK + tl.arange(0, BLOCK)[None, :]
    known = (one < CHANNELS) & (other < CHANNELS)
    displacement = 5 * down + right
    # a displacement back is the transpose of its opposite
    place = tl.where(displacement >= 0, other * CHANNELS + one, one * CHANNELS + other)
    total = tl.load(sums_ptr + tl.abs(displacement) * size + place, mask=known, other=0.0)
    lines_ptr = sums_ptr + DISPLACEMENTS * size
    on_row, on_column = (down == 0) & (y != 1), (right == 0) & (x != 1)
    row = (y // 2 * LINE + tl.abs(right)) * size
    column = ((2 + x // 2) * LINE + tl.abs(down)) * size
    corner = (4 + y // 2 * 2 + x // 2) * LINE * size
    total -= tl.load(lines_ptr + row + place, mask=known & on_row, other=0.0)
    total -= tl.load(lines_ptr + column + place, mask=known & on_column, other=0.0)
    total += tl.load(lines_ptr + corner + place, mask=known & on_row & on_column, other=0.0)
    target = (one_tap * CHANNELS + one) * (9 * CHANNELS) + other_tap * CHANNELS + other
    tl.store(out_ptr + target, total / positions, mask=known)


@triton.jit
def mirror_kernel(
    parts_ptr,  # [splits, entries, entries], known on and above the diagonal
    out_ptr,  # [entries, entries]
    splits,
    positions,
    ENTRIES: tl.constexpr,
    SPLITS: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The parts' sum over the number of positions, and its mirror image below the diagonal."""
    row, block = tl.program_id(0), tl.program_id(1)
    if (block + 1) * BLOCK > row:
        column = block * BLOCK + tl.arange(0, BLOCK)
        known = (column >= row) & (column < ENTRIES)
        total = _add_parts(parts_ptr, splits, ENTRIES * ENTRIES, row * ENTRIES + column, known, SPLITS, STEPS)
        total = total / positions
        tl.store(out_ptr + row * ENTRIES + column, total, mask=known)
        tl.store(out_ptr + column * ENTRIES + row, total, mask=known)


@triton.jit
def mean_kernel(
    sums_ptr,  # [H, W, C], over all images
    out_ptr,  # [9, C]
    positions,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,  # output positions at a time
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The mean over output positions of what one tap reads, in float64."""
    height: tl.constexpr = (HEIGHT + STRIDE - 1) // STRIDE
    width: tl.constexpr = (WIDTH + STRIDE - 1) // STRIDE
    tap = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    position = tl.arange(0, ROWS * COLUMNS)
    total = tl.zeros([ROWS * COLUMNS, BLOCK], tl.float64)
    for top in range(0, height, ROWS):
        row = top + position // COLUMNS
        y = row * STRIDE + tap // 3 - 1
        for left in range(0, width, COLUMNS):
            column = left + position % COLUMNS
            x = column * STRIDE + tap % 3 - 1
            inside = (row < height) & (column < width) & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
            place = (y * WIDTH + x)[:, None] * CHANNELS + channel[None, :]
            mask = inside[:, None] & (channel < CHANNELS)[None, :]
            total += tl.load(sums_ptr + place, mask=mask, other=0.0).to(tl.float64)
    mean = tl.sum(total, 0) / positions
    tl.store(out_ptr + tap * CHANNELS + channel, mean.to(tl.float32), mask=channel < CHANNELS)


def mean_patch(images: Tensor, stride: int) -> Tensor:
    """The mean patch [9C] of images [N, H, W, C], float32."""
    count, height, width, channels = images.shape
    rows, columns = outputs(height, stride), outputs(width, stride)
    sums = images.sum(0, dtype=torch.float32)
    out = torch.empty(9 * channels, dtype=torch.float32, device=images.device)
    block = min(8, next_power_of_2(channels))
    tile_columns = min(128, next_power_of_2(columns))
    tile_rows = min(max(1, TILE // (4 * tile_columns)), next_power_of_2(rows))
    warps = min(8, max(1, tile_rows * tile_columns * block // 256))
    mean_kernel[(9, ceil_div(channels, block))](
        sums, out, count * rows * columns, height, width, channels, stride, tile_rows, tile_columns, block,
        num_warps=warps,
    )  # fmt: skip
    return out


def second_by_correlations(images: Tensor) -> Tensor:
    """The mean of patch·patchᵀ [9C, 9C] at stride 1, float32."""
    count, height, width, channels = images.shape
    whole, borders = correlations(images, borders=False), correlations(images, borders=True)
    windows = DISPLACEMENTS + WINDOWS * LINE_DISPLACEMENTS
    sums = torch.empty(windows, channels, channels, dtype=torch.float32, device=images.device)
    sizes = whole[0].numel(), borders[0].numel()
    block, splits = _tile(channels**2, max(len(whole), len(borders)))
    add_correlations_kernel[(sum(ceil_div(size, block) for size in sizes),)](
        whole, borders, sums, len(whole), len(borders), *sizes, splits, ceil_div(len(whole), splits),
        ceil_div(len(borders), splits), block, num_warps=_warps(block * splits),
    )  # fmt: skip
    out = torch.empty(9 * channels, 9 * channels, dtype=torch.float32, device=images.device)
    side = min(32, next_power_of_2(channels))
    assemble_kernel[(81, ceil_div(channels, side) ** 2)](
        sums, out, count * height * width, DISPLACEMENTS, LINE_DISPLACEMENTS, channels, side, num_warps=4
    )
    return out


def second_by_products(images: Tensor, stride: int) -> Tensor:
    """The mean of patch·patchᵀ [9C, 9C], float32."""
    count, height, width, channels = images.shape
    entries = 9 * channels
    parts = products(images, stride)
    out = torch.empty(entries, entries, dtype=torch.float32, device=images.device)
    block, splits = _tile(entries, len(parts))
    positions = count * outputs(height, stride) * outputs(width, stride)
    mirror_kernel[(entries, ceil_div(entries, block))](
        parts, out, len(parts), positions, entries, splits, ceil_div(len(parts), splits), block,
        num_warps=_warps(block * splits),
    )  # fmt: skip
    return out


def _tile(numbers: int, parts: int) -> tuple[int, int]:
    """(numbers, parts) that a program adds at a time."""
    splits = min(next_power_of_2(parts), TILE // 64)
    return min(1024, TILE // splits, next_power_of_2(numbers)), splits


def _warps(numbers: int) -> int:
    return min(8, max(1, numbers // 256))
