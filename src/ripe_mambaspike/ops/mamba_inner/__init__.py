"""The inside of a bidirectional Mamba: convolution, step projection, scan and gate of both directions in one call.

Direction 0 runs forwards over the tokens, direction 1 backwards; nothing is flipped in memory.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.backend import run
from ripe_mambaspike.ops.mamba_inner.reference import causal_conv
from ripe_mambaspike.ops.mamba_inner.scan import selective_scan
from ripe_mambaspike.ops.operator import nothing_like, or_none


class InnerWeights(NamedTuple):
    """D directions (one or two), E inner channels, K taps, R rank of the step projection, N states; float32."""

    conv: Tensor  # [D, E, K]
    conv_bias: Tensor | None  # [D, E]
    x_proj: Tensor  # [D, R + 2N, E], the activations' precision
    dt_proj: Tensor  # [D, E, R]
    dt_bias: Tensor  # [D, E]
    decay: Tensor  # A, negative [D, E, N]
    skip: Tensor  # [D, E]


def mamba_inner(inputs: Tensor, weights: InnerWeights) -> Tensor:
    """inputs [B, L, D, 2E] (inner half, gate half) → y·silu(gate) [B, L, D, E], the state in float32."""
    out: Tensor = torch.ops.ripe.mamba_inner(inputs, *weights)
    return out


def mamba_inner_reference(inputs: Tensor, weights: InnerWeights) -> Tensor:
    """The same in plain PyTorch."""
    states = weights.decay.shape[2]
    outs = []
    for direction in range(inputs.shape[2]):
        bias = None if weights.conv_bias is None else weights.conv_bias[direction]
        here = inputs[:, :, direction].flip(1) if direction else inputs[:, :, direction]
        inner, gate = here.chunk(2, -1)
        inner = F.silu(causal_conv(inner, weights.conv[direction], bias)[0])
        rank = weights.dt_proj.shape[2]
        step, into, out_of = F.linear(inner, weights.x_proj[direction]).split((rank, states, states), -1)
        delta = F.softplus(F.linear(step, weights.dt_proj[direction], weights.dt_bias[direction]))
        y, _ = selective_scan(inner, delta, weights.decay[direction], into, out_of, weights.skip[direction])
        y = y * F.silu(gate)
        outs.append(y.flip(1) if direction else y)
    return torch.stack(outs, 2)


@torch.library.custom_op("ripe::mamba_inner", mutates_args=())
def _mamba_inner(
    inputs: Tensor,
    conv: Tensor,
    conv_bias: Tensor | None,
    x_proj: Tensor,
    dt_proj: Tensor,
    dt_bias: Tensor,
    decay: Tensor,
    skip: Tensor,
) -> Tensor:
    out: Tensor = run("mamba_inner", "mamba_inner", inputs, conv, conv_bias, x_proj, dt_proj, dt_bias, decay, skip)
    return out


@_mamba_inner.register_fake
def _(inputs: Tensor, *rest: Any) -> Tensor:
    return inputs.new_empty(*inputs.shape[:3], inputs.shape[3] // 2)


@torch.library.custom_op("ripe::mamba_inner_backward", mutates_args=())
def _mamba_inner_backward(
    inputs: Tensor,
    conv: Tensor,
    conv_bias: Tensor | None,
    x_proj: Tensor,
    dt_proj: Tensor,
    dt_bias: Tensor,
    decay: Tensor,
    skip: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    weights = (conv, conv_bias, x_proj, dt_proj, dt_bias, decay, skip)
    return tuple(run("mamba_inner", "mamba_inner_backward", inputs, *weights, grad))


@_mamba_inner_backward.register_fake
def _(inputs: Tensor, conv: Tensor, conv_bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    bias = nothing_like(conv) if conv_bias is None else torch.empty_like(conv_bias)
    return torch.empty_like(inputs), torch.empty_like(conv), bias, *(torch.empty_like(w) for w in rest[:5])


def _context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    return tuple(or_none(saved, torch.ops.ripe.mamba_inner_backward(*saved, grad.contiguous())))


_mamba_inner.register_autograd(_gradient, setup_context=_context)
