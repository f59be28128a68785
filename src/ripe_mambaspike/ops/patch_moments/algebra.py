"""From correlations of an image to the second moment of its 3×3 patches, and its gradient; stride 1.

Let R[δ] = Σ x(q) x(q+δ)ᵀ over all pixels q, zeros outside the image. Taps d, d' of a patch meet in

    Σ x(p+d) x(p+d')ᵀ  over positions p  =  R[d'−d]  less the pixels q = p+d whose p lies outside the image.

For d = +1 along an axis those are the pixels of the first row or column, for d = −1 those of the last, and among them
only pairs within the same row or column remain, so d' = d along that axis. Hence S = R − border rows − border columns
+ corners, where a border term is the correlation of one border line with itself, and exact for every image size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

SIDES = (0, 2)  # indices of the taps −1 and +1, which miss a border; 1 is the middle


def border(tap: int, size: int) -> int:
    """The line that this tap of a patch never reads: −1 (index 0) misses the last, +1 (index 2) the first."""
    return size - 1 if tap == 0 else 0


def second_moment(whole: Tensor, rows: Tensor, columns: Tensor, corners: Tensor) -> Tensor:
    """Sums over positions of patch·patchᵀ [9C, 9C] from correlations of the image and of its borders.

    whole [5, 5, C, C] by displacement −2…2, rows and columns [2, 5, C, C], corners [2, 2, C, C].
    """
    channels = whole.shape[-1]
    out = _by_tap(_by_tap(whole, 0), 2)  # [3 y, 3 y', 3 x, 3 x', C, C]
    lines = _by_tap(rows, 1), _by_tap(columns, 1)
    for index, side in enumerate(SIDES):
        out[side, side].sub_(lines[0][index])
        out[:, :, side, side].sub_(lines[1][index])
    for index, row in enumerate(SIDES):
        for other, column in enumerate(SIDES):
            out[row, row, column, column].add_(corners[index, other])
    return out.permute(0, 2, 4, 1, 3, 5).reshape(9 * channels, 9 * channels)


def mean_patch(images: Tensor, stride: int) -> Tensor:
    """The mean patch [9C] of images [N, H, W, C], float32."""
    count, height, width, _ = images.shape
    rows, columns = outputs(height, stride), outputs(width, stride)
    padded = F.pad(images.sum(0, dtype=torch.float32).double(), (0, 0, 1, 2, 1, 2))
    sums = [padded[window].sum((0, 1)) for window in tap_windows(rows, columns, stride)]
    return (torch.cat(sums) / (count * rows * columns)).float()


def outputs(size: int, stride: int) -> int:
    """Output positions along an axis."""
    return -(-size // stride)


def tap_windows(rows: int, columns: int, stride: int) -> list[tuple[slice, slice]]:
    """The slices that each of the nine taps reads from the image, padded by one before and two after."""
    return [
        (slice(y, y + rows * stride, stride), slice(x, x + columns * stride, stride))
        for y in range(3)
        for x in range(3)
    ]


def all_displacements(half: Tensor, dim: int) -> Tensor:
    """Correlations [.., C, C] at all displacements, from the half that starts at 0; the others are its opposites."""
    opposite = half.narrow(dim, 1, half.shape[dim] - 1).flip(dim).transpose(-1, -2)
    return torch.cat([opposite, half], dim)


def unit_stride_gradient(x: Tensor, grad_mean: Tensor, grad_second: Tensor, positions: int) -> Tensor:
    """The gradient of x [N, H, W, C] at stride 1: one 5×5 convolution, corrected at the borders.

    `positions` is the number of patches that the moments average over; x may be a part of the images.
    """
    _, height, width, channels = x.shape
    form = _quadratic(grad_second, positions)
    bias = grad_mean.view(3, 3, channels) / positions
    out = convolve_exactly(x, _whole_kernel(form), bias.sum((0, 1)), padding=(2, 2))
    row_kernels, column_kernels = _row_kernels(form), _row_kernels(form.permute(1, 0, 2, 4, 3, 5))
    for tap in SIDES:
        row, column = border(tap, height), border(tap, width)
        lines = x[:, row : row + 1], x[:, :, column : column + 1]
        out[:, row : row + 1].sub_(
            convolve_exactly(lines[0], row_kernels[tap][:, :, None], bias[tap].sum(0), padding=(0, 2))
        )
        out[:, :, column : column + 1].sub_(
            convolve_exactly(lines[1], column_kernels[tap][..., None], bias[:, tap].sum(0), padding=(2, 0))
        )
        for other in SIDES:
            corner = slice(row, row + 1), slice(border(other, width), border(other, width) + 1)
            kernel = form[tap, other, :, tap, other, :, None, None]
            out[:, *corner].add_(convolve_exactly(x[:, *corner], kernel, bias[tap, other]))
    return out


def patch_gradient(grad_mean: Tensor, grad_second: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """Kernel [9C, C, 3, 3] and bias [9C] of the convolution that gives every position the gradient of its patch."""
    kernel = _quadratic(grad_second, positions).flatten(0, 2)
    return kernel.permute(0, 3, 1, 2), grad_mean / positions


def convolve_exactly(
    x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int = 1, padding: tuple[int, int] = (0, 0)
) -> Tensor:
    """x [N, H, W, C] over a kernel [D, C, h, w] → [N, H', W', D], in x's dtype (no TF32), deterministic."""
    kernel = kernel.to(x.dtype).contiguous(memory_format=torch.channels_last)
    bias = None if bias is None else bias.to(x.dtype)
    flags = False, True, True, False  # benchmark, deterministic, with cuDNN, with TF32
    out: Tensor = torch.ops.aten._convolution(
        x.permute(0, 3, 1, 2), kernel, bias, [stride] * 2, list(padding), [1, 1], False, [0, 0], 1, *flags
    )
    return out.permute(0, 2, 3, 1)


def _quadratic(grad_second: Tensor, positions: int) -> Tensor:
    """Q = (G + Gᵀ)/n as [3 y, 3 x, C, 3 y', 3 x', C]: the gradient of a patch is Q patch."""
    channels = grad_second.shape[0] // 9
    return ((grad_second + grad_second.T) / positions).view(3, 3, channels, 3, 3, channels)


def _whole_kernel(form: Tensor) -> Tensor:
    """The sum of Q over pairs of taps at the same displacement, as a kernel [C, C, 5, 5]."""
    return _by_displacement(_by_displacement(form.permute(0, 3, 1, 4, 2, 5), 0), 1).permute(2, 3, 0, 1)


def _row_kernels(form: Tensor) -> Tensor:
    """The same over pairs of taps within one tap row: [3 tap rows, C, C, 5]."""
    return _by_displacement(form.diagonal(dim1=0, dim2=3).permute(0, 2, 4, 1, 3), 0).permute(1, 2, 3, 0)


def _by_tap(values: Tensor, dim: int) -> Tensor:
    """[.., 5 displacements, ..] → a copy as [.., 3 taps d, 3 taps d', ..] with the displacement d' − d."""
    windows = values.unfold(dim, 3, 1).movedim(-1, dim + 1)
    return windows.flip(dim)


def _by_displacement(values: Tensor, dim: int) -> Tensor:
    """[.., 3 taps d, 3 taps d', ..] → sums over equal displacements d' − d as [.., 5, ..]: `_by_tap` transposed."""
    shape = list(values.shape)
    del shape[dim]
    shape[dim] = 5
    out = values.new_zeros(shape)
    for tap in range(3):
        out.narrow(dim, 2 - tap, 3).add_(values.select(dim, tap))
    return out
