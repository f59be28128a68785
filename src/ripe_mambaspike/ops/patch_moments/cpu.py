"""Moments of 3×3 patches on a CPU by PyTorch's operators; convolutions are faster than matrix products here."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.patch_moments import PatchMomentsInputs, or_zeros
from ripe_mambaspike.ops.patch_moments.algebra import (
    SIDES,
    all_displacements,
    border,
    convolve_exactly,
    mean_patch,
    outputs,
    patch_gradient,
    second_moment,
    tap_windows,
    unit_stride_gradient,
)

MIN_HALVED_COLUMNS = 72  # below, a product is not worth halving
MAX_PIXELS_PER_SUM = 1 << 14  # longer sums lose digits in float32


def patch_moments(i: PatchMomentsInputs) -> tuple[Tensor, Tensor]:
    x, stride = i
    images = x.flatten(0, 1).float()
    height, width = images.shape[1:3]
    images_per_part = max(1, MAX_PIXELS_PER_SUM // (height * width))
    if stride == 1:
        return mean_patch(images, 1), _unit_stride(images, images_per_part)
    parts = (_patches(part, stride) for part in images.split(images_per_part))
    second = sum(_square(patches) for patches in parts)
    assert isinstance(second, Tensor)
    return mean_patch(images, stride), second / (len(images) * outputs(height, stride) * outputs(width, stride))


def patch_moments_backward(i: PatchMomentsInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor]:
    """The gradient of x [B, T, H, W, C], in its precision."""
    x, stride = i
    grad_mean, grad_second = or_zeros(i, grads)
    images = x.flatten(0, 1).float()
    count, height, width, channels = images.shape
    if stride == 1:
        out = unit_stride_gradient(images, grad_mean, grad_second, count * height * width)
        return (out.to(x.dtype).contiguous().view(x.shape),)
    rows, columns = outputs(height, stride), outputs(width, stride)
    kernel, bias = patch_gradient(grad_mean, grad_second, count * rows * columns)
    padded = images.new_zeros(count, height + 3, width + 3, channels)
    images_per_part = max(1, 4 * MAX_PIXELS_PER_SUM // (height * width))
    for part, out in zip(images.split(images_per_part), padded.split(images_per_part), strict=True):
        by_tap = convolve_exactly(part, kernel, bias, stride, (1, 1)).unflatten(-1, (9, channels))
        for tap, window in enumerate(tap_windows(rows, columns, stride)):
            out[:, *window].add_(by_tap[..., tap, :])
    return (padded[:, 1 : height + 1, 1 : width + 1].to(x.dtype).contiguous().view(x.shape),)


def _square(patches: Tensor) -> Tensor:
    """patchesᵀ patches, computing the symmetric half only once."""
    half = patches.shape[1] // 2
    if half < MIN_HALVED_COLUMNS:
        return patches.T @ patches
    left, right = patches[:, :half], patches[:, half:]
    across = left.T @ right
    upper, lower = torch.cat((_square(left), across), 1), torch.cat((across.T, _square(right)), 1)
    return torch.cat((upper, lower))


def _unit_stride(images: Tensor, images_per_part: int) -> Tensor:
    """The mean of patch·patchᵀ at stride 1, by correlations."""
    count, height, width, channels = images.shape
    half = sum(_half_correlations(part) for part in images.split(images_per_part))
    assert isinstance(half, Tensor)
    # The other 12 displacements are transposes of these: the second half of the middle row and the rows below it.
    whole = all_displacements(half.flatten(0, 1)[2:], 0).view(5, 5, channels, channels)
    rows = [images[:, border(tap, height)] for tap in SIDES]
    columns = [images[:, :, border(tap, width)] for tap in SIDES]
    corners = torch.stack([row[:, border(tap, width)] for row in rows for tap in SIDES])
    second = second_moment(
        whole,
        torch.stack([_line_correlations(line) for line in rows]),
        torch.stack([_line_correlations(line) for line in columns]),
        (corners.transpose(1, 2) @ corners).unflatten(0, (2, 2)),
    )
    return second / (count * height * width)


def _half_correlations(images: Tensor) -> Tensor:
    """Σ x(q) x(q+δ)ᵀ as [3, 5, C, C] for δ = 0…2 rows down, −2…2 columns: the weight gradient of a convolution."""
    channels = images.shape[-1]
    below = F.pad(images, (0, 0, 0, 0, 0, 2)).permute(0, 3, 1, 2)
    shape = images.new_empty(channels, channels, 3, 5)
    grad: Tensor = torch.ops.aten.convolution_backward(
        images.permute(0, 3, 1, 2), below, shape, None, [1, 1], [0, 2], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    return grad.permute(2, 3, 0, 1)


def _line_correlations(line: Tensor) -> Tensor:
    """[N, length, C] → Σ x(q) x(q+δ)ᵀ along the line, [5, C, C] for δ = −2…2."""
    channels, length = line.shape[-1], line.shape[1]
    half = line.new_zeros(3, channels, channels)
    for shift in range(min(3, length)):
        here, there = line[:, : length - shift].flatten(0, 1), line[:, shift:].flatten(0, 1)
        half[shift] = here.T @ there
    return all_displacements(half, 0)


def _patches(images: Tensor, stride: int) -> Tensor:
    """[N, H, W, C] → every patch [positions, 9C]."""
    rows, columns = (outputs(size, stride) for size in images.shape[1:3])
    padded = F.pad(images, (0, 0, 1, 2, 1, 2))
    taps = [padded[:, *window] for window in tap_windows(rows, columns, stride)]
    return torch.stack(taps, 3).flatten(3).flatten(0, 2)
