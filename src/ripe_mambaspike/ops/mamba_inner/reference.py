"""The inside of a Mamba block in plain PyTorch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.mamba_inner import InnerWeights, MambaInnerInputs, MambaState
from ripe_mambaspike.ops.mamba_inner.scan import selective_scan


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Depthwise convolution over the past: x [B, L, E], weight [E, K], state [B, K − 1, E]."""
    taps = weight.shape[1]
    if initial_state is None:
        padded = F.pad(x, (0, 0, taps - 1, 0))
    else:
        padded = torch.cat((initial_state.to(x.dtype), x), 1)
    length = x.shape[1]
    out = padded[:, :length] * weight[:, 0]
    for tap in range(1, taps):
        out = torch.addcmul(out, padded[:, tap : tap + length], weight[:, tap])
    return (out if bias is None else out + bias), padded[:, length:]


def mamba_inner(i: MambaInnerInputs) -> tuple[Tensor, Tensor | None]:
    """(y·silu(gate) [B, L, D, E], final ssm state of a single direction)."""
    given: list[Any] = [getattr(i, name) for name in InnerWeights._fields]
    before = None if i.conv_state is None or i.ssm_state is None else MambaState(i.conv_state, i.ssm_state)
    outs, ssm = [], None
    for direction, inputs in enumerate(i.inputs.unbind(2)):
        here: list[Any] = [None if one is None else one[direction] for one in given]
        weights = InnerWeights(*here)
        y, (_, ssm) = _inner(inputs.flip(1) if direction else inputs, weights, before)
        outs.append(y.flip(1) if direction else y)
    return torch.stack(outs, 2), ssm if i.output_final_state else None


def _inner(inputs: Tensor, weights: InnerWeights, state: MambaState | None) -> tuple[Tensor, MambaState]:
    """One direction: inputs [B, L, 2E] (inner half, gate half), weights without their first dimension → [B, L, E]."""
    conv, ssm = state or (None, None)
    rank, states = weights.dt_proj.shape[1], weights.A.shape[1]
    inner, gate = inputs.chunk(2, -1)
    inner, conv = causal_conv(inner, weights.conv1d_weight, weights.conv1d_bias, conv)
    inner = F.silu(inner)
    step, into, out_of = F.linear(inner, weights.x_proj).split((rank, states, states), -1)
    delta = F.softplus(F.linear(step, weights.dt_proj, weights.dt_bias))
    y, ssm = selective_scan(inner, delta, weights.A, into, out_of, weights.D, ssm)
    return y * F.silu(gate), MambaState(conv, ssm)
