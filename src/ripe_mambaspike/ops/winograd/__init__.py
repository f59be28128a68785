"""A 3×3 convolution of stride 1 with 3 products per output instead of 9, for inference in float32.

Winograd's F(2×4, 3×3). Its rounding error is 1.2 to 1.6 times that of PyTorch's convolution at the network's sizes, as
measured. The order of summation does not depend on the batch or the threads. Only C++ implements these.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.backend import backend
from ripe_mambaspike.ops.operator import Operator

LANES = 16  # channels must be a multiple


class WinogradWeightsInputs(NamedTuple):
    kernel: Tensor  # [C, C_in, 3, 3]


class WinogradConvInputs(NamedTuple):
    x: Tensor  # [B, H, W, C_in]
    weights: Tensor  # [24, C·C_in]
    channels: int  # C
    bias: Tensor | None  # [C]


def winograd_weights(kernel: Tensor) -> Tensor | None:
    """The kernel [C, C_in, 3, 3] as `winograd_conv` reads it [24, C·C_in]; None if that cannot be used."""
    outputs, inputs = kernel.shape[:2]
    whole = outputs % LANES == 0 and inputs % LANES == 0
    if torch.is_grad_enabled() or not whole or kernel.dtype != torch.float32 or backend(kernel) != "native":
        return None
    weights: Tensor = WINOGRAD_WEIGHTS(WinogradWeightsInputs(kernel))
    return weights


def winograd_conv(x: Tensor, weights: Tensor, channels: int, bias: Tensor | None = None) -> Tensor:
    """x [B, H, W, C_in], zeros around it → [B, H, W, C]."""
    out: Tensor = WINOGRAD_CONV(WinogradConvInputs(x.contiguous(), weights, channels, bias))
    return out


def _empty_weights(i: WinogradWeightsInputs) -> Tensor:
    return i.kernel.new_empty(24, i.kernel.shape[0] * i.kernel.shape[1])


WINOGRAD_WEIGHTS = Operator("winograd_weights", WinogradWeightsInputs, ("weights",), _empty_weights)
WINOGRAD_CONV = Operator(
    "winograd_conv", WinogradConvInputs, ("out",), lambda i: i.x.new_empty(*i.x.shape[:3], i.channels)
)
