"""Moments of 3×3 patches on a GPU."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.patch_moments import PatchMomentsInputs, arriving
from ripe_mambaspike.ops.patch_moments.algebra import (
    all_displacements,
    convolve_exactly,
    mean_patch,
    outputs,
    patch_gradient,
    second_moment,
    unit_stride_gradient,
)
from ripe_mambaspike.ops.patch_moments.triton_kernels import collect, correlations, products

FEWEST_CHANNELS = 16  # below, all nine taps fit one tile and the correlations save nothing
LARGEST_TEMPORARY = 1 << 29  # bytes
MOST_NUMBERS = 1 << 30  # in one convolution: cuDNN counts in 32 bits


def patch_moments(i: PatchMomentsInputs) -> tuple[Tensor, Tensor]:
    x, stride = i
    images = x.contiguous().flatten(0, 1)
    count, height, width, channels = images.shape
    if stride == 1 and channels >= FEWEST_CHANNELS:
        second = _unit_stride(images)
    else:
        second = products(images, stride)
    return mean_patch(images, stride), second / (count * outputs(height, stride) * outputs(width, stride))


def patch_moments_backward(i: PatchMomentsInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor]:
    return (_gradient(*i, *arriving(i, grads)),)


def _gradient(x: Tensor, stride: int, grad_mean: Tensor, grad_second: Tensor) -> Tensor:
    """The gradient of x [B, T, H, W, C], in its precision."""
    images = x.contiguous().flatten(0, 1)
    count, height, width, channels = images.shape
    if stride == 1 and min(height, width) < 3 and x.dtype != torch.float32:
        # all border: what is added and taken off again outweighs what is left, so it is not rounded in between
        return _gradient(x.float(), stride, grad_mean, grad_second).to(x.dtype)
    if stride == 1:
        together = max(1, MOST_NUMBERS // (height * width * channels))
        positions = count * height * width
        parts = [unit_stride_gradient(part, grad_mean, grad_second, positions) for part in images.split(together)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).contiguous().view(x.shape)
    if stride != 2:
        raise ValueError(f"stride: expected 1 or 2, got {stride}")
    positions = outputs(height, stride) * outputs(width, stride)
    kernel, bias = patch_gradient(grad_mean, grad_second, count * positions)
    together = max(1, LARGEST_TEMPORARY // (9 * channels * positions * x.element_size()))
    out = torch.empty_like(images)
    for part, grads in zip(images.split(together), out.split(together), strict=True):
        collect(convolve_exactly(part, kernel, bias, stride, (1, 1)), grads)
    return out.view(x.shape)


def _unit_stride(images: Tensor) -> Tensor:
    """Σ patch·patchᵀ by correlations."""
    channels = images.shape[-1]
    # the kernels hold the transposes: x(q+δ) first
    half = correlations(images, borders=False)[0].transpose(-1, -2)
    lines = correlations(images, borders=True).transpose(-1, -2)
    return second_moment(
        all_displacements(half, 0).view(5, 5, channels, channels),
        all_displacements(lines[:2], 1),
        all_displacements(lines[2:4], 1),
        lines[4:, 0].unflatten(0, (2, 2)),
    )
