"""Moments of 3×3 patches on a GPU."""

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.patch_moments import PatchMomentsInputs, or_zeros
from ripe_mambaspike.ops.patch_moments.algebra import convolve_exactly, outputs
from ripe_mambaspike.ops.patch_moments.triton_gradient import UnitStrideGradient, collect, patch_kernel
from ripe_mambaspike.ops.patch_moments.triton_sums import mean_patch, second_by_correlations, second_by_products

MIN_CHANNELS = 16  # with fewer, all nine taps fit one tile and correlations save nothing
MAX_TEMPORARY_BYTES = 1 << 29  # bytes
MAX_CONV_ELEMENTS = 1 << 30  # cuDNN uses 32-bit indices


def patch_moments(i: PatchMomentsInputs) -> tuple[Tensor, Tensor]:
    x, stride = i
    images = x.contiguous().flatten(0, 1)
    by_correlations = stride == 1 and images.shape[-1] >= MIN_CHANNELS
    second = second_by_correlations(images) if by_correlations else second_by_products(images, stride)
    return mean_patch(images, stride), second


def patch_moments_backward(i: PatchMomentsInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor]:
    return (_gradient(*i, *or_zeros(i, grads)),)


def _gradient(x: Tensor, stride: int, grad_mean: Tensor, grad_second: Tensor) -> Tensor:
    """The gradient of x [B, T, H, W, C], in its precision."""
    images = x.contiguous().flatten(0, 1)
    count, height, width, channels = images.shape
    if stride == 1 and min(height, width) < 3 and x.dtype != torch.float32:
        # On tiny images the border terms cancel most of the sum, so nothing is rounded in between.
        return _gradient(x.float(), stride, grad_mean, grad_second).to(x.dtype)
    if stride == 1:
        size = max(1, MAX_CONV_ELEMENTS // (height * width * channels))
        gradient = UnitStrideGradient(images, grad_mean, grad_second, count * height * width)
        parts = [gradient(part) for part in images.split(size)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(x.shape)
    if stride != 2:
        raise InputError.expected("stride", "1 or 2", stride)
    positions = outputs(height, stride) * outputs(width, stride)
    kernel = patch_kernel(images, grad_second, count * positions)
    images_per_part = max(1, MAX_TEMPORARY_BYTES // (9 * channels * positions * x.element_size()))
    out = torch.empty_like(images)
    for part, grads in zip(images.split(images_per_part), out.split(images_per_part), strict=True):
        collect(convolve_exactly(part, kernel, None, stride, (1, 1)), grad_mean, count * positions, grads)
    return out.view(x.shape)
