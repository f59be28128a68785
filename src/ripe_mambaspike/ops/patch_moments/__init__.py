"""First and second moments of a convolution's 3×3 patches.

With them the batch statistics of every bias-free branch over the same input are small matrix algebra: a branch that
equals the kernel k [9C] has the mean k·m and the mean square kᵀ S k.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.backend import run


def patch_moments(x: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """x [B, T, H, W, C] → mean patch [9C] and mean of patch·patchᵀ [9C, 9C], float32, over samples, steps, positions.

    Patches are those of a 3×3 convolution with padding 1 at every output position; a patch is laid out tap by tap in
    raster order, the channels of a tap together.
    """
    mean, second = torch.ops.ripe.patch_moments(x, stride)
    return mean, second


def patch_moments_reference(x: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """The same with every patch written out."""
    channels = x.shape[-1]
    flat = x.permute(0, 1, 4, 2, 3).flatten(0, 1)
    patches = F.unfold(flat, 3, padding=1, stride=stride).unflatten(1, (channels, 9)).transpose(1, 2).flatten(1, 2)
    patches = patches.transpose(1, 2).flatten(0, 1)  # [all positions, 9C]
    return patches.mean(0), patches.T @ patches / patches.shape[0]


@torch.library.custom_op("ripe::patch_moments", mutates_args=())
def _patch_moments(x: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    return tuple(run("patch_moments", "patch_moments", x, stride))


@_patch_moments.register_fake
def _(x: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    size = 9 * x.shape[-1]
    return x.new_empty(size, dtype=torch.float32), x.new_empty(size, size, dtype=torch.float32)


@torch.library.custom_op("ripe::patch_moments_backward", mutates_args=())
def _patch_moments_backward(x: Tensor, grad_mean: Tensor, grad_second: Tensor, stride: int) -> Tensor:
    out: Tensor = run("patch_moments", "patch_moments_backward", x, grad_mean, grad_second, stride)
    return out


@_patch_moments_backward.register_fake
def _(x: Tensor, grad_mean: Tensor, grad_second: Tensor, stride: int) -> Tensor:
    return torch.empty_like(x)


def _context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.stride = inputs[1]


def _gradient(ctx: Any, mean: Tensor, second: Tensor) -> tuple[Any, ...]:
    return torch.ops.ripe.patch_moments_backward(ctx.saved_tensors[0], mean, second, ctx.stride), None


_patch_moments.register_autograd(_gradient, setup_context=_context)
