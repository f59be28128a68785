"""The inside of a bidirectional Mamba in C++; the matrix products around its scan are PyTorch's.

u and the projections are float32 whatever the activations' precision: they are small, and nothing is rounded twice.
Tensors that a matrix product reads are [D, B·L, ...]; every number has one fixed order of summation.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.ops.cpp.build import library
from ripe_mambaspike.ops.cpp.call import call, dense


def mamba_inner(
    inputs: Tensor,
    conv: Tensor,
    conv_bias: Tensor | None,
    x_proj: Tensor,
    dt_proj: Tensor,
    dt_bias: Tensor,
    decay: Tensor,
    skip: Tensor,
) -> Tensor:
    """inputs [B, L, D, 2E] → y·silu(gate) [B, L, D, E]."""
    kernel = _Call(inputs, conv, dt_proj, decay)
    weights = _plain(dt_proj, dt_bias, decay, skip)
    u, proj = _projected(kernel, conv, conv_bias, x_proj)
    out = inputs.new_empty(*inputs.shape[:3], inputs.shape[3] // 2)
    kernel("mamba_scan", kernel.inputs, u, proj, *weights, out)
    return out


def mamba_inner_backward(
    inputs: Tensor,
    conv: Tensor,
    conv_bias: Tensor | None,
    x_proj: Tensor,
    dt_proj: Tensor,
    dt_bias: Tensor,
    decay: Tensor,
    skip: Tensor,
    grad: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients of all arguments of `mamba_inner` in their order; an empty one for an absent bias."""
    kernel = _Call(inputs, conv, dt_proj, decay)
    weights = _plain(dt_proj, dt_bias, decay, skip)
    u, proj = _projected(kernel, conv, conv_bias, x_proj)
    batch, length, directions, channels, taps, rank, states = kernel.sizes
    grad_inputs = torch.empty_like(kernel.inputs)
    grad_u, grad_step = torch.empty_like(u), torch.empty_like(u)
    groups = library().ripe_mamba_groups(ctypes.c_int64(channels))
    grad_sums = u.new_empty(groups, directions, batch * length, 2 * states)
    grad_params = u.new_empty(batch, directions, channels, states + 2)
    given = (kernel.inputs, u, proj, *weights, grad.to(inputs.dtype).contiguous())
    kernel("mamba_scan_backward", *given, grad_inputs, grad_u, grad_step, grad_sums, grad_params)

    grad_proj = torch.cat((grad_step @ weights[0], grad_sums.sum(0)), -1)
    grad_dt_proj = grad_step.transpose(1, 2) @ proj[..., :rank]
    grad_x_proj = grad_proj.transpose(1, 2) @ u
    grad_u = torch.baddbmm(grad_u, grad_proj, x_proj.float())

    grad_taps = u.new_empty(batch, directions, channels, taps + 1)
    kernel("mamba_conv_backward", kernel.inputs, *_plain(conv, conv_bias), grad_u, grad_inputs, grad_taps)
    grad_conv, grad_bias = grad_taps.sum(0).split((taps, 1), -1)
    grad_decay, grad_skip, grad_dt_bias = grad_params.sum(0).split((states, 1, 1), -1)
    return (
        grad_inputs,
        _as(grad_conv, conv),
        conv.new_empty(0) if conv_bias is None else _as(grad_bias, conv_bias),
        _as(grad_x_proj, x_proj),
        _as(grad_dt_proj, dt_proj),
        _as(grad_dt_bias, dt_bias),
        _as(grad_decay, decay),
        _as(grad_skip, skip),
    )


class _Call:
    """What every C++ function is given first: the sizes B, L, D, E, K, R, N and the precision."""

    def __init__(self, inputs: Tensor, conv: Tensor, dt_proj: Tensor, decay: Tensor) -> None:
        self.inputs = inputs.contiguous()
        batch, length, directions, width = inputs.shape
        self.sizes = (batch, length, directions, width // 2, conv.shape[2], dt_proj.shape[2], decay.shape[2])

    def __call__(self, name: str, *tensors: Tensor | None) -> None:
        call(name, torch.tensor(self.sizes), self.inputs.dtype == torch.bfloat16, *tensors)


def _projected(kernel: _Call, conv: Tensor, conv_bias: Tensor | None, x_proj: Tensor) -> tuple[Tensor, Tensor]:
    """u [D, B·L, E] and its projections [D, B·L, R + 2N] (step, B, C)."""
    batch, length, directions, channels = kernel.sizes[:4]
    u = conv.new_empty(directions, batch * length, channels, dtype=torch.float32)
    kernel("mamba_conv", kernel.inputs, *_plain(conv, conv_bias), u)
    return u, u @ x_proj.float().transpose(1, 2)


def _as(grad: Tensor, parameter: Tensor) -> Tensor:
    """A gradient with its parameter's shape and precision and memory of its own: some are parts of one sum."""
    return torch.empty_like(parameter).copy_(grad.reshape(parameter.shape))


def _plain(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Parameters as the C++ reads them: float32, contiguous."""
    return tuple(dense(tensor, torch.float32) for tensor in tensors)
