# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels for the gradient of the moments; few launches, which is what small images wait for.

The gradient of a patch is Q patch with Q = (G + Gᵀ)/n. `algebra.py` has the same in PyTorch, with the reasons for the
terms at the borders. Border windows are numbered as in `triton_kernels.py`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.patch_moments.algebra import convolve_exactly
from ripe_mambaspike.ops.patch_moments.triton_kernels import WINDOWS, load_pixels, window_of
from ripe_mambaspike.ops.triton_launch import Synchronous, ceil_div, next_power_of_2

BORDER_SLOTS = 4 * 5 + 4  # of a border kernel: each tap of the four lines', then the four corners'


@triton.jit
def unit_stride_kernel(
    grad_mean_ptr,  # [9C]
    grad_second_ptr,  # [9C, 9C]
    whole_ptr,  # [C, 5, 5, C]: output channels first, as a channels-last kernel
    borders_ptr,  # [24, C, C]: input channels first
    biases_ptr,  # [9, C] of the border windows, then of the whole image
    positions,
    mean_stride,
    row_stride,
    column_stride,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One tap of a kernel: the sum of Q over pairs of taps at the same displacement (down, right).

    A border's pairs are those whose first tap misses the border: rows y_first…y_last, columns x_first…x_last.
    """
    slot, out_block, in_block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    is_whole = slot < 25
    border = tl.maximum(slot - 25, 0)
    window = tl.where(border < 20, border // 5, border - 16)
    shift = border % 5 - 2
    corner = tl.maximum(window - 4, 0)
    one_row, one_column = (window < 2) | (window >= 4), window >= 2
    row_tap = 2 * tl.where(window < 2, window, corner // 2)
    column_tap = 2 * tl.where(window < 4, window - 2, corner % 2)
    y_first, y_last = tl.where(one_row, row_tap, 0), tl.where(one_row, row_tap, 2)
    x_first, x_last = tl.where(one_column, column_tap, 0), tl.where(one_column, column_tap, 2)
    down, right = tl.where(one_row, 0, shift), tl.where(one_column, 0, shift)
    y_first, y_last = tl.where(is_whole, 0, y_first), tl.where(is_whole, 2, y_last)
    x_first, x_last = tl.where(is_whole, 0, x_first), tl.where(is_whole, 2, x_last)
    down, right = tl.where(is_whole, slot // 5 - 2, down), tl.where(is_whole, slot % 5 - 2, right)

    channel = out_block * BLOCK + tl.arange(0, BLOCK)
    one = channel[:, None]
    other = in_block * BLOCK + tl.arange(0, BLOCK)[None, :]
    known = (one < CHANNELS) & (other < CHANNELS)
    # the second tap lies `offset` entries behind the first, and within the patch
    offset = (3 * down + right) * CHANNELS
    top, bottom = tl.maximum(y_first, -down), tl.minimum(y_last, 2 - down)
    left, end = tl.maximum(x_first, -right), tl.minimum(x_last, 2 - right)
    upper_ptr = grad_second_ptr + one * row_stride + (other + offset) * column_stride
    lower_ptr = grad_second_ptr + one * column_stride + (other + offset) * row_stride
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for y in tl.static_range(3):
        for x in tl.static_range(3):
            meets = known & ((y >= top) & (y <= bottom) & (x >= left) & (x <= end))
            place = (y * 3 + x) * CHANNELS * (row_stride + column_stride)
            total += tl.load(upper_ptr + place, mask=meets, other=0.0)
            total += tl.load(lower_ptr + place, mask=meets, other=0.0)
    total = total / positions
    whole_place, border_place = (one * 25 + slot) * CHANNELS + other, (border * CHANNELS + other) * CHANNELS + one
    tl.store(whole_ptr + whole_place, total.to(whole_ptr.dtype.element_ty), mask=known & is_whole)
    tl.store(borders_ptr + border_place, total.to(borders_ptr.dtype.element_ty), mask=known & (slot >= 25))
    if (down == 0) & (right == 0) & (in_block == 0):  # one program of each window
        bias = tl.zeros([BLOCK], tl.float32)
        for tap in tl.static_range(9):
            counts = (tap // 3 >= top) & (tap // 3 <= bottom) & (tap % 3 >= left) & (tap % 3 <= end)
            bias_ptr = grad_mean_ptr + (tap * CHANNELS + channel) * mean_stride
            bias += tl.load(bias_ptr, mask=(channel < CHANNELS) & counts, other=0.0)
        bias_place = tl.where(is_whole, 8, window) * CHANNELS + channel
        tl.store(biases_ptr + bias_place, bias / positions, mask=channel < CHANNELS)


@Synchronous
@triton.jit
def border_kernel(
    x_ptr,  # [N, H, W, C]
    kernels_ptr,  # [24, C, C]: input channels first
    biases_ptr,  # [9, C]
    out_ptr,  # [N, 2W + 2H + 4, C]: the windows' pixels
    images,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The convolution of every border window with its own kernel."""
    tile, window, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    top, left, height, width, one_row = window_of(window, HEIGHT, WIDTH)
    area = height * width
    if tile * PIXELS < images * area:
        pixels = tile * PIXELS + tl.arange(0, PIXELS)
        valid = pixels < images * area
        image = pixels // area
        rest = pixels - image * area
        row, column = top + rest // width, left + rest % width
        pixel = image.to(tl.int64) * (HEIGHT * WIDTH) + row * WIDTH + column
        outer = block * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros([PIXELS, BLOCK], tl.float32)
        for tap in range(5):  # of a corner's only the middle one lies in the window
            shift = tap - 2
            slot = tl.where(window < 4, window * 5 + tap, window + 16)
            for first in range(0, CHANNELS, INNER):
                inner = first + tl.arange(0, INNER)
                down = tl.zeros([INNER], tl.int32) + tl.where(one_row, 0, shift)
                right = tl.zeros([INNER], tl.int32) + tl.where(one_row, shift, 0)
                values = load_pixels(
                    x_ptr, pixel, row, column, valid, down, right, inner, inner < CHANNELS,
                    top, left, top + height, left + width, WIDTH, CHANNELS,
                )  # fmt: skip
                place = (slot * CHANNELS + inner[:, None]) * CHANNELS + outer[None, :]
                mask = (inner < CHANNELS)[:, None] & (outer < CHANNELS)[None, :]
                weights = tl.load(kernels_ptr + place, mask=mask, other=0.0)
                total = tl.dot(values, weights, total, input_precision="ieee")
        total += tl.load(biases_ptr + window * CHANNELS + outer, mask=outer < CHANNELS, other=0.0)[None, :]
        start = tl.where(window < 2, window * WIDTH, 2 * WIDTH + (window - 2) * HEIGHT)
        start = tl.where(window < 4, start, 2 * WIDTH + 2 * HEIGHT + window - 4)
        target = image.to(tl.int64) * (2 * WIDTH + 2 * HEIGHT + 4) + start + rest
        stored = valid[:, None] & (outer < CHANNELS)[None, :]
        tl.store(out_ptr + target[:, None] * CHANNELS + outer[None, :], total, mask=stored)


@triton.jit
def correct_kernel(
    out_ptr,  # [N, H, W, C]: the convolution of the whole image without its bias, updated in place
    borders_ptr,  # [N, 2W + 2H + 4, C]
    bias_ptr,  # [C]
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add the bias, take off the border rows and columns, add the corners."""
    image, y = tl.program_id(0) // HEIGHT, tl.program_id(0) % HEIGHT
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x, channel = element // CHANNELS, element % CHANNELS
    known = element < WIDTH * CHANNELS
    line_ptr = out_ptr + tl.program_id(0).to(tl.int64) * (WIDTH * CHANNELS)
    image_ptr = borders_ptr + image.to(tl.int64) * ((2 * WIDTH + 2 * HEIGHT + 4) * CHANNELS)
    total = tl.load(line_ptr + element, mask=known, other=0.0).to(tl.float32)
    total += tl.load(bias_ptr + channel, mask=known, other=0.0)
    for side in tl.static_range(2):  # the last row, the first row
        on_row = known & (y == (1 - side) * (HEIGHT - 1))
        total -= tl.load(image_ptr + side * WIDTH * CHANNELS + element, mask=on_row, other=0.0)
    for side in tl.static_range(2):
        on_column = known & (x == (1 - side) * (WIDTH - 1))
        place = 2 * WIDTH + side * HEIGHT + y
        total -= tl.load(image_ptr + place * CHANNELS + channel, mask=on_column, other=0.0)
        for row_side in tl.static_range(2):
            on_corner = on_column & (y == (1 - row_side) * (HEIGHT - 1))
            corner = 2 * WIDTH + 2 * HEIGHT + 2 * row_side + side
            total += tl.load(image_ptr + corner * CHANNELS + channel, mask=on_corner, other=0.0)
    tl.store(line_ptr + element, total.to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def quadratic_kernel(
    grad_second_ptr,  # [entries, entries]
    out_ptr,
    positions,
    row_stride,
    column_stride,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Q in the precision of `out`."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    known = (row < ENTRIES) & (column < ENTRIES)
    total = tl.load(grad_second_ptr + row * row_stride + column * column_stride, mask=known, other=0.0)
    total += tl.load(grad_second_ptr + column * row_stride + row * column_stride, mask=known, other=0.0)
    tl.store(out_ptr + row * ENTRIES + column, (total / positions).to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def collect_kernel(
    grads_ptr,  # [N, ⌈H/2⌉, ⌈W/2⌉, 9, C], without the gradient of the mean
    grad_mean_ptr,  # [9C]
    out_ptr,  # [N, H, W, C]
    numbers,
    positions,
    mean_stride,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Stride 2: every pixel adds up the gradients of the patches it lies in, one or two along each axis."""
    rows: tl.constexpr = (HEIGHT + 1) // 2
    columns: tl.constexpr = (WIDTH + 1) // 2
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    pixel, channel = element // CHANNELS, (element % CHANNELS).to(tl.int32)
    line, x = pixel // WIDTH, (pixel % WIDTH).to(tl.int32)
    image, y = line // HEIGHT, (line % HEIGHT).to(tl.int32)
    total = tl.zeros([BLOCK], tl.float32)
    bias = tl.zeros([BLOCK], tl.float32)
    for below in tl.static_range(2):
        for beyond in tl.static_range(2):
            # an even pixel is the middle of one patch; an odd one is the last of one and the first of the next
            row, column = y // 2 + below, x // 2 + beyond
            tap = tl.where(y % 2 == 0, 1, 2 - 2 * below) * 3 + tl.where(x % 2 == 0, 1, 2 - 2 * beyond)
            meets = (element < numbers) & (row < rows) & (column < columns)
            meets = meets & ((y % 2 == 1) | (below == 0)) & ((x % 2 == 1) | (beyond == 0))
            position = (image * rows + row) * columns + column
            total += tl.load(grads_ptr + (position * 9 + tap) * CHANNELS + channel, mask=meets, other=0.0).to(
                tl.float32
            )
            bias += tl.load(grad_mean_ptr + (tap * CHANNELS + channel) * mean_stride, mask=meets, other=0.0)
    total += bias / positions
    tl.store(out_ptr + element, total.to(out_ptr.dtype.element_ty), mask=element < numbers)


class UnitStrideGradient:
    """The gradient of images [N, H, W, C] at stride 1, for parts of the images: one 5×5 convolution and the borders."""

    def __init__(self, like: Tensor, grad_mean: Tensor, grad_second: Tensor, positions: int) -> None:
        channels = like.shape[-1]
        self.whole = like.new_empty(channels, 5, 5, channels)
        self.borders = like.new_empty(BORDER_SLOTS, channels, channels)
        self.biases = torch.empty(WINDOWS + 1, channels, dtype=torch.float32, device=like.device)
        block = min(32, next_power_of_2(channels))
        blocks = ceil_div(channels, block)
        unit_stride_kernel[(25 + BORDER_SLOTS, blocks, blocks)](
            grad_mean, grad_second, self.whole, self.borders, self.biases, positions,
            *grad_mean.stride(), *grad_second.stride(), channels, block, num_warps=4,
        )  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        count, height, width, channels = x.shape
        out = convolve_exactly(x, self.whole.permute(0, 3, 1, 2), None, padding=(2, 2)).contiguous()
        lines = 2 * width + 2 * height + 4
        borders = torch.empty(count, lines, channels, dtype=torch.float32, device=x.device)
        pixels, block = 64, min(64, max(16, next_power_of_2(channels)))
        inner = min(block, 32 if x.dtype == torch.float32 else 64)
        grid = ceil_div(count * max(height, width), pixels), WINDOWS, ceil_div(channels, block)
        border_kernel[grid](
            x, self.borders, self.biases, borders, count, height, width, channels, pixels, inner, block,
            num_warps=4, num_stages=2,
        )  # fmt: skip
        size = min(1024, next_power_of_2(width * channels))
        correct_kernel[(count * height, ceil_div(width * channels, size))](
            out, borders, self.biases[WINDOWS], height, width, channels, size, num_warps=min(4, max(1, size // 128))
        )
        return out


def patch_kernel(like: Tensor, grad_second: Tensor, positions: int) -> Tensor:
    """Kernel [9C, C, 3, 3] of the convolution that gives every position the gradient of its patch."""
    channels = like.shape[-1]
    entries = 9 * channels
    out, block = like.new_empty(entries, 3, 3, channels), min(32, next_power_of_2(entries))
    grid = (ceil_div(entries, block),) * 2
    quadratic_kernel[grid](grad_second, out, positions, *grad_second.stride(), entries, block, num_warps=4)
    return out.permute(0, 3, 1, 2)


def collect(grads: Tensor, grad_mean: Tensor, positions: int, out: Tensor) -> None:
    """Patch gradients at stride 2, [N, ⌈H/2⌉, ⌈W/2⌉, 9C], and that of the mean, into out [N, H, W, C]."""
    block, numbers = 1024, out.numel()
    collect_kernel[(ceil_div(numbers, block),)](
        grads.contiguous(), grad_mean, out, numbers, positions, *grad_mean.stride(), *out.shape[1:], block, num_warps=4
    )
