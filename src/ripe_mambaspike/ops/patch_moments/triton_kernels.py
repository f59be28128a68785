# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels for the moments of 3×3 patches, and how they are launched.

All read images [N, H, W, C]. Sums over pixels are split among programs, which write partial sums; `triton_sums.py`
adds them in a fixed order.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.triton_launch import Synchronous, ceil_div, next_power_of_2

DISPLACEMENTS = 13  # those of −2…2 rows and columns from 0 on; the others are their opposites
WINDOWS = 8  # last row, first row, last column, first column, and the four corners in the same order
PROGRAMS = 132 * 8  # enough to fill a large GPU a few times over
MAX_PIXELS_PER_SUM = 1 << 14  # longer sums lose digits
MAX_PARTIALS_BYTES = 1 << 28


class Tile(NamedTuple):
    """The tile of one program: wide × narrow products, `pixels` at a time."""

    wide: int
    narrow: int
    pixels: int
    warps: int
    stages: int


@triton.jit
def load_pixels(x_ptr, pixel, row, column, valid, down, right, channel, known, top, left, bottom, end, WIDTH, CHANNELS):
    """[pixels, entries]: the channel `down` rows and `right` columns from each pixel, 0 outside the window."""
    y = row[:, None] + down[None, :]
    x = column[:, None] + right[None, :]
    inside = (y >= top) & (y < bottom) & (x >= left) & (x < end) & valid[:, None] & known[None, :]
    entry = (down * WIDTH + right) * CHANNELS + channel
    return tl.load(x_ptr + pixel[:, None] * CHANNELS + entry[None, :], mask=inside, other=0.0)


@triton.jit
def window_of(window, HEIGHT, WIDTH):
    """(top, left, height, width, whether it lies along a row) of a border window."""
    corner = window - 4
    row_side = tl.where(window < 2, window, corner // 2)
    column_side = tl.where(window < 4, window - 2, corner % 2)
    one_row = (window < 2) | (window >= 4)
    one_column = window >= 2
    top = tl.where(one_row & (row_side == 0), HEIGHT - 1, 0)
    left = tl.where(one_column & (column_side == 0), WIDTH - 1, 0)
    return top, left, tl.where(one_row, 1, HEIGHT), tl.where(one_column, 1, WIDTH), one_row


@Synchronous
@triton.jit
def correlate_kernel(
    x_ptr,  # [N, H, W, C]
    parts_ptr,  # [splits, windows, displacements, C, C]
    images,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BORDERS: tl.constexpr,  # one of the border windows by program, or the whole image
    COUNT: tl.constexpr,  # displacements
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    PIXELS: tl.constexpr,
    STEPS: tl.constexpr,  # of PIXELS each, per split
):
    """parts[k, j, i] = Σ x_j(q + δ_k) x_i(q) over the window's pixels q; all (k, j) form one wide axis."""
    narrow_blocks: tl.constexpr = (CHANNELS + NARROW - 1) // NARROW
    block, window, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    wide = (block // narrow_blocks) * WIDE + tl.arange(0, WIDE)
    narrow = (block % narrow_blocks) * NARROW + tl.arange(0, NARROW)
    index, wide_channel = wide // CHANNELS, wide % CHANNELS
    if BORDERS:
        top, left, height, width, one_row = window_of(window, HEIGHT, WIDTH)
        down, right = tl.where(one_row, 0, index), tl.where(one_row, index, 0)
    else:
        top, left, height, width = 0, 0, HEIGHT, WIDTH
        down, right = (index + 2) // 5, (index + 2) % 5 - 2
    here = tl.zeros([NARROW], tl.int32)
    area = height * width
    total = tl.zeros([WIDE, NARROW], tl.float32)
    for step in range(STEPS):
        pixels = (split * STEPS + step) * PIXELS + tl.arange(0, PIXELS)
        image = pixels // area
        rest = pixels - image * area
        row, column = top + rest // width, left + rest % width
        pixel = image.to(tl.int64) * (HEIGHT * WIDTH) + row * WIDTH + column
        valid = pixels < images * area
        shifted = load_pixels(
            x_ptr, pixel, row, column, valid, down, right, wide_channel, index < COUNT,
            top, left, top + height, left + width, WIDTH, CHANNELS,
        )  # fmt: skip
        center = load_pixels(
            x_ptr, pixel, row, column, valid, here, here, narrow, narrow < CHANNELS,
            top, left, top + height, left + width, WIDTH, CHANNELS,
        )  # fmt: skip
        total = tl.dot(tl.trans(shifted), center, total, input_precision="ieee")
    part = (split * tl.num_programs(1) + window).to(tl.int64) * (COUNT * CHANNELS * CHANNELS)
    targets = parts_ptr + part + wide[:, None] * CHANNELS + narrow[None, :]
    tl.store(targets, total, mask=(index < COUNT)[:, None] & (narrow < CHANNELS)[None, :])


@Synchronous
@triton.jit
def products_kernel(
    x_ptr,  # [N, H, W, C]
    parts_ptr,  # [splits, 9C, 9C], blocks on and above the diagonal
    images,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    PIXELS: tl.constexpr,
    STEPS: tl.constexpr,  # of PIXELS each, per split
):
    """parts = Σ patch patchᵀ over output positions."""
    entries: tl.constexpr = 9 * CHANNELS
    rows: tl.constexpr = (HEIGHT + STRIDE - 1) // STRIDE
    columns: tl.constexpr = (WIDTH + STRIDE - 1) // STRIDE
    block, other, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if block <= other:
        one, two = block * BLOCK + tl.arange(0, BLOCK), other * BLOCK + tl.arange(0, BLOCK)
        one_tap, two_tap = one // CHANNELS, two // CHANNELS
        total = tl.zeros([BLOCK, BLOCK], tl.float32)
        for step in range(STEPS):
            positions = (split * STEPS + step) * PIXELS + tl.arange(0, PIXELS)
            image = positions // (rows * columns)
            rest = positions - image * (rows * columns)
            row, column = rest // columns * STRIDE, rest % columns * STRIDE
            pixel = image.to(tl.int64) * (HEIGHT * WIDTH) + row * WIDTH + column
            valid = positions < images * (rows * columns)
            a = load_pixels(
                x_ptr, pixel, row, column, valid, one_tap // 3 - 1, one_tap % 3 - 1, one % CHANNELS, one < entries,
                0, 0, HEIGHT, WIDTH, WIDTH, CHANNELS,
            )  # fmt: skip
            b = load_pixels(
                x_ptr, pixel, row, column, valid, two_tap // 3 - 1, two_tap % 3 - 1, two % CHANNELS, two < entries,
                0, 0, HEIGHT, WIDTH, WIDTH, CHANNELS,
            )  # fmt: skip
            total = tl.dot(tl.trans(a), b, total, input_precision="ieee")
        targets = parts_ptr + split.to(tl.int64) * (entries * entries) + one[:, None] * entries + two[None, :]
        tl.store(targets, total, mask=(one < entries)[:, None] & (two < entries)[None, :])


def correlations(images: Tensor, *, borders: bool) -> Tensor:
    """Partial sums of x_j(q + δ) x_i(q) as [splits, windows, displacements, C (j), C (i)], float32.

    The whole image (one window): displacements (0, 0…2), (1, −2…2), (2, −2…2). Borders: 0…2 along each line.
    """
    count, height, width, channels = images.shape
    windows, displacements = (WINDOWS, 3) if borders else (1, DISPLACEMENTS)
    tile = _tile(images.dtype, channels)
    blocks = ceil_div(displacements * channels, tile.wide) * ceil_div(channels, tile.narrow)
    pixels = count * (max(height, width) if borders else height * width)
    splits, steps = _split(pixels, blocks * windows, windows * displacements * channels**2, tile.pixels)
    parts = torch.empty(splits, windows, displacements, channels, channels, dtype=torch.float32, device=images.device)
    correlate_kernel[(blocks, windows, splits)](
        images, parts, count, height, width, channels, borders, displacements,
        tile.wide, tile.narrow, tile.pixels, steps, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return parts


def products(images: Tensor, stride: int) -> Tensor:
    """Partial sums of patch patchᵀ [splits, 9C, 9C], float32; known on and above the diagonal."""
    count, height, width, channels = images.shape
    entries = 9 * channels
    tile = _tile(images.dtype, entries)
    blocks = ceil_div(entries, tile.narrow)
    positions = count * ceil_div(height, stride) * ceil_div(width, stride)
    splits, steps = _split(positions, blocks * (blocks + 1) // 2, entries**2, tile.pixels)
    parts = torch.empty(splits, entries, entries, dtype=torch.float32, device=images.device)
    products_kernel[(blocks, blocks, splits)](
        images, parts, count, height, width, channels, stride, tile.narrow, tile.pixels, steps,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return parts


def _tile(dtype: torch.dtype, channels: int) -> Tile:
    narrow = min(128, max(16, next_power_of_2(channels)))
    if dtype == torch.float32:  # no tensor cores: small tiles that stay in registers
        return Tile(64, min(64, narrow), 32, 4, 2)
    return Tile(128, narrow, 64, 8 if narrow == 128 else 4, 3)


def _split(pixels: int, programs: int, part: int, step: int) -> tuple[int, int]:
    """(programs per sum over pixels, steps of each); powers of two, so that few variants are compiled."""
    splits = max(ceil_div(PROGRAMS, programs), pixels // MAX_PIXELS_PER_SUM)
    splits = max(1, min(splits, MAX_PARTIALS_BYTES // (8 * part)))
    steps = next_power_of_2(max(1, pixels // (splits * step)) + 1) // 2
    return ceil_div(pixels, steps * step), steps
