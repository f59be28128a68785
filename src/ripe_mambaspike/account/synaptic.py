"""Synaptic operations of any network: every convolution, Linear and product of spikes is watched while it runs.

A layer whose operand consists of zeros and ones can be executed by additions: one for every spike and every weight
that reads it, counted exactly at the borders. A product of two matrices of spikes adds a row of one for every spike of
the other; the cheaper way is counted. All other layers stay multiply-adds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.account.energy import ConvActivity
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.peers.layers import SpikeMatmul
from ripe_mambaspike.ops.backend import kernels

CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


@torch.no_grad()
def watch_activity(model: Model, x: Tensor) -> list[ConvActivity]:
    """Run the network on binned events [B, T, 2, H, W] and count the operations of its layers, for one sample."""
    layers: list[ConvActivity] = []
    samples = len(x)

    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def count(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            found = _activity(name, module, inputs, samples)
            layers.append(replace(found, reads_events=_is_input(inputs[0], x)))

        return count

    watched: tuple[type[nn.Module], ...] = (*CONVOLUTIONS, nn.Linear, SpikeMatmul)
    hooks = [m.register_forward_pre_hook(watch(n)) for n, m in model.named_modules() if isinstance(m, watched)]
    try:
        with kernels("off"):  # operators that stand for several modules would not call them
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return layers


def _activity(name: str, module: nn.Module, inputs: tuple[Tensor, ...], samples: int) -> ConvActivity:
    operand = inputs[0]
    if isinstance(module, SpikeMatmul):
        return _product(name, inputs[0], inputs[1], samples)
    binary = _is_binary(operand)
    if isinstance(module, nn.Linear):
        macs = operand.numel() // module.in_features * module.in_features * module.out_features
        reads = _sum(operand) * module.out_features
    else:
        macs, reads = _convolution_counts(module, operand)
    return ConvActivity(name, binary, _mean(operand), macs // samples, reads / samples if binary else None)


def _convolution_counts(conv: Any, operand: Tensor) -> tuple[int, float]:
    """Multiply-adds of a convolution without its padding, and the weights that a binary operand reads."""
    dims = len(conv.kernel_size)
    taps = torch.ones(1, 1, *conv.kernel_size, dtype=torch.float64, device=operand.device)
    plain = operand.reshape(-1, *operand.shape[-dims - 1 :])  # a convolution accepts one image without a batch
    options = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation}
    ones = torch.ones(1, 1, *plain.shape[2:], dtype=torch.float64, device=operand.device)
    outputs = conv.out_channels // conv.groups
    positions = _sum(CONVOLUTIONS[type(conv)](ones, taps, **options))
    spikes = plain.sum(1, keepdim=True, dtype=torch.float64)
    reads = _sum(CONVOLUTIONS[type(conv)](spikes, taps, **options)) * outputs
    return round(positions) * len(plain) * conv.in_channels * outputs, reads


def _product(name: str, a: Tensor, b: Tensor, samples: int) -> ConvActivity:
    """a [..., n, k] @ b [..., k, m]."""
    rows, columns = a.shape[-2], b.shape[-1]
    ways = [_sum(one) * reads for one, reads in ((a, columns), (b, rows)) if _is_binary(one)]
    operand = a if _is_binary(a) or not ways else b
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]).numel()
    accumulates = min(ways) / samples if ways else None
    return ConvActivity(name, bool(ways), _mean(operand), lead * rows * a.shape[-1] * columns // samples, accumulates)


def _is_input(operand: Tensor, x: Tensor) -> bool:
    """Whether the operand is the events x, in any order of dimensions: part of the same memory, or a copy of it all."""
    if operand.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        return True
    return operand.numel() == x.numel() and torch.equal(operand.flatten().sort()[0], x.flatten().sort()[0])


def _is_binary(x: Tensor) -> bool:
    return bool(((x == 0) | (x == 1)).all())


def _sum(x: Tensor) -> float:
    return float(x.sum(dtype=torch.float64))


def _mean(x: Tensor) -> float:
    return _sum(x) / x.numel()
