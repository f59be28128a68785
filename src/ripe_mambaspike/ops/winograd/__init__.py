"""A 3×3 convolution of stride 1 with 3 products for an output instead of 9, for inference in float32.

Winograd's F(2×4, 3×3). It rounds 1.2 to 1.6 times as much as PyTorch's own does at the network's sizes, by measurement.
A number's sum has one order, however many images there are and whichever thread computes it. C++ alone computes these.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.backend import backend, run

VECTOR = 16  # channels come in whole numbers of these


def tile_weights(kernel: Tensor) -> Tensor | None:
    """The kernel [C, C_in, 3, 3] as `tile_conv` reads it [24, C·C_in]; None where that cannot or should not be used."""
    outputs, inputs = kernel.shape[:2]
    whole = outputs % VECTOR == 0 and inputs % VECTOR == 0
    if torch.is_grad_enabled() or not whole or kernel.dtype != torch.float32 or backend(kernel) != "native":
        return None
    weights: Tensor = torch.ops.ripe.tile_weights(kernel)
    return weights


def tile_conv(x: Tensor, weights: Tensor, outputs: int, bias: Tensor | None = None) -> Tensor:
    """x [B, H, W, C_in], zeros around it → [B, H, W, C]."""
    out: Tensor = torch.ops.ripe.tile_conv(x.contiguous(), weights, outputs, bias)
    return out


def tile_conv_reference(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, bias, padding=1).permute(0, 2, 3, 1)


@torch.library.custom_op("ripe::tile_weights", mutates_args=())
def _tile_weights(kernel: Tensor) -> Tensor:
    out: Tensor = run("winograd", "tile_weights", kernel)
    return out


@_tile_weights.register_fake
def _(kernel: Tensor) -> Tensor:
    return kernel.new_empty(24, kernel.shape[0] * kernel.shape[1])


@torch.library.custom_op("ripe::tile_conv", mutates_args=())
def _tile_conv(x: Tensor, weights: Tensor, outputs: int, bias: Tensor | None) -> Tensor:
    out: Tensor = run("winograd", "tile_conv", x, weights, outputs, bias)
    return out


@_tile_conv.register_fake
def _(x: Tensor, weights: Tensor, outputs: int, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:3], outputs)
