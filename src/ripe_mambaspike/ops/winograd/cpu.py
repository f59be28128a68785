"""The 3×3 convolution of few products in C++."""

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.cpp.call import call, dense


def tile_weights(kernel: Tensor) -> Tensor:
    """[C, C_in, 3, 3] → what `tile_conv` multiplies with, 24 C C_in numbers in its own order."""
    outputs, inputs = kernel.shape[:2]
    weights = torch.empty(24, outputs * inputs)
    call("winograd_weights", outputs, inputs, dense(kernel, torch.float32), weights)
    return weights


def tile_conv(
    x: Tensor, weights: Tensor, outputs: int, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """x [B, H, W, C_in] → [B, H, W, C], into `out` where it is given, which has to be contiguous."""
    if x.dtype != torch.float32:
        raise InputError(f"x is {str(x.dtype).removeprefix('torch.')}; float32 is wanted")
    if weights.numel() != 24 * x.shape[-1] * outputs:
        raise InputError(f"there are {weights.numel()} weights; {24 * x.shape[-1] * outputs} are wanted")
    out = x.new_empty(*x.shape[:3], outputs) if out is None else out
    if out.numel() == 0:
        return out
    call("winograd", *x.shape, outputs, dense(x), weights, dense(bias, torch.float32), out)
    return out
