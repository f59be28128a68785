"""The inside of a Mamba block in C++; the matrix products around its scan are PyTorch's.

u and the projections are float32 whatever the activations' dtype: they are small, and nothing is rounded twice.
Inputs of matrix products are [D, B·L, ...]; the order of summation is fixed.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.ops.cpp.build import library
from ripe_mambaspike.ops.cpp.call import call, dense, is_bfloat16, or_null
from ripe_mambaspike.ops.mamba_inner import InnerWeights, MambaInnerInputs, empty_mamba_inner
from ripe_mambaspike.ops.operator import nothing_like


def mamba_inner(i: MambaInnerInputs) -> tuple[Tensor, Tensor]:
    kernel = _Call(i)
    u, proj = kernel.projected()
    out, ssm = empty_mamba_inner(i)
    kernel("mamba_scan", kernel.inputs, u, proj, *kernel.scan_weights, *_plain(i.ssm_state), out, or_null(ssm))
    return out, ssm


def mamba_inner_backward(i: MambaInnerInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """The gradients of the inputs and of all weights; an empty one for an absent bias."""
    kernel = _Call(i)
    u, proj = kernel.projected()
    batch, length, directions, channels, taps, rank, states = kernel.sizes
    grad_inputs = torch.empty_like(kernel.inputs)
    grad_u, grad_step = torch.empty_like(u), torch.empty_like(u)
    groups = library().ripe_mamba_groups(ctypes.c_int64(channels))
    grad_sums = u.new_empty(groups, directions, batch * length, 2 * states)
    grad_params = u.new_empty(batch, directions, channels, states + 2)
    given = (kernel.inputs, u, proj, *kernel.scan_weights, dense(grads[0], i.inputs.dtype))
    kernel("mamba_scan_backward", *given, grad_inputs, grad_u, grad_step, grad_sums, grad_params)

    grad_proj = torch.cat((grad_step @ kernel.scan_weights[0], grad_sums.sum(0)), -1)
    grad_dt_proj = grad_step.transpose(1, 2) @ proj[..., :rank]
    grad_x_proj = grad_proj.transpose(1, 2) @ u
    grad_u = torch.baddbmm(grad_u, grad_proj, i.x_proj.float())

    grad_taps = u.new_empty(batch, directions, channels, taps + 1)
    kernel("mamba_conv_backward", kernel.inputs, *kernel.conv_weights, grad_u, grad_inputs, grad_taps)
    grad_conv, grad_bias = grad_taps.sum(0).split((taps, 1), -1)
    grad_a, grad_d, grad_dt_bias = grad_params.sum(0).split((states, 1, 1), -1)
    found = InnerWeights(grad_conv, grad_bias, grad_x_proj, grad_dt_proj, grad_dt_bias, grad_a, grad_d)
    return grad_inputs, *(_as(grad, getattr(i, name), u) for name, grad in found._asdict().items())


class _Call:
    """The first arguments of every C++ function: the sizes B, L, D, E, K, R, N, the dtype and the weights."""

    def __init__(self, i: MambaInnerInputs) -> None:
        self.i, self.inputs = i, i.inputs.contiguous()
        batch, length, directions, width = i.inputs.shape
        self.sizes = (batch, length, directions, width // 2, i.conv1d_weight.shape[2], i.dt_proj.shape[2], i.A.shape[2])
        self.conv_weights = _plain(i.conv1d_weight, i.conv1d_bias)
        self.scan_weights = _plain(i.dt_proj, i.dt_bias, i.A, i.D)

    def __call__(self, name: str, *tensors: Tensor | None) -> None:
        call(name, torch.tensor(self.sizes), is_bfloat16(self.inputs), *tensors)

    def projected(self) -> tuple[Tensor, Tensor]:
        """u [D, B·L, E] and its projections [D, B·L, R + 2N] (step, B, C)."""
        batch, length, directions, channels = self.sizes[:4]
        u = self.inputs.new_empty(directions, batch * length, channels, dtype=torch.float32)
        state = dense(self.i.conv_state, self.inputs.dtype)
        self("mamba_conv", self.inputs, *self.conv_weights, state, u)
        return u, u @ self.i.x_proj.float().transpose(1, 2)


def _as(grad: Tensor, parameter: Tensor | None, like: Tensor) -> Tensor:
    """A gradient in its parameter's shape and dtype, copied: some are views of one sum."""
    return nothing_like(like) if parameter is None else torch.empty_like(parameter).copy_(grad.reshape(parameter.shape))


def _plain(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Parameters as the C++ reads them: float32, contiguous."""
    return tuple(dense(tensor, torch.float32) for tensor in tensors)
