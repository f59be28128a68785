"""Winograd's 3×3 convolution in C++."""

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.cpp.call import call, dense
from ripe_mambaspike.ops.winograd import WinogradConvInputs, WinogradWeightsInputs


def winograd_weights(i: WinogradWeightsInputs) -> Tensor:
    """24 C C_in numbers in the order in which `winograd_conv` multiplies."""
    outputs, inputs = i.kernel.shape[:2]
    weights = torch.empty(24, outputs * inputs)
    call("winograd_weights", outputs, inputs, dense(i.kernel, torch.float32), weights)
    return weights


def winograd_conv(i: WinogradConvInputs) -> Tensor:
    if i.x.dtype != torch.float32:
        raise InputError.expected("x", "float32", str(i.x.dtype).removeprefix("torch."))
    wanted = 24 * i.x.shape[-1] * i.channels
    if i.weights.numel() != wanted:
        raise InputError.expected("weights", f"{wanted} numbers", i.weights.numel())
    out = i.x.new_empty(*i.x.shape[:3], i.channels)
    if out.numel():
        call("winograd", *i.x.shape, i.channels, dense(i.x), i.weights, dense(i.bias, torch.float32), out)
    return out
