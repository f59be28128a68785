"""Mamba-1 over a token sequence, in one direction and in both."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.mamba_inner.scan import selective_scan
from ripe_mambaspike.ops.shapes import at_least_float32


class MambaWeights(NamedTuple):
    """E = expand·d inner channels, R = rank of the step projection, N states, K taps."""

    in_proj: Tensor  # [2E, d]
    conv: Tensor  # [E, K]
    conv_bias: Tensor | None  # [E]
    x_proj: Tensor  # [R + 2N, E]
    dt_proj: Tensor  # [E, R]
    dt_bias: Tensor  # [E]
    a_log: Tensor  # [E, N]
    skip: Tensor  # [E]
    out_proj: Tensor  # [d, E]


class MambaState(NamedTuple):
    recent: Tensor  # the last K − 1 inputs of the convolution [B, K − 1, E]
    hidden: Tensor  # the scan's state [B, E, N]


class BidirectionalState(NamedTuple):
    forward: MambaState | None  # from the tokens before these
    backward: MambaState | None  # from the tokens after these


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


def mamba(x: Tensor, weights: MambaWeights, initial_state: MambaState | None = None) -> tuple[Tensor, MambaState]:
    """x [B, L, d] → (y [B, L, d], final state)."""
    recent, hidden = (None, None) if initial_state is None else initial_state
    rank, states = weights.dt_proj.shape[1], weights.a_log.shape[1]
    inner, gate = F.linear(x, weights.in_proj).chunk(2, -1)
    inner, recent = causal_conv(inner, weights.conv, weights.conv_bias, recent)
    inner = F.silu(inner)
    step, into, out_of = F.linear(inner, weights.x_proj).split((rank, states, states), -1)
    delta = F.softplus(F.linear(step, weights.dt_proj, weights.dt_bias))
    decay = -torch.exp(at_least_float32(weights.a_log))
    y, hidden = selective_scan(inner, delta, decay, into, out_of, weights.skip, hidden)
    return F.linear(y * F.silu(gate), weights.out_proj), MambaState(recent, hidden)


def bidirectional_mamba(
    x: Tensor,
    forward: MambaWeights,
    backward: MambaWeights,
    merge: Tensor,
    merge_bias: Tensor,
    initial_state: BidirectionalState | None = None,
) -> tuple[Tensor, BidirectionalState]:
    """`Linear[Mamba_f(x), flip Mamba_b(flip x)]`: x [B, L, d], merge [d, 2d] → (y [B, L, d], final states).

    A piece of a longer sequence needs the forward state of the piece before it and the backward state of the piece
    after it; each direction's final state depends on that direction alone, so two sweeps over the pieces are exact.
    """
    state = initial_state or BidirectionalState(None, None)
    ahead, forward_state = mamba(x, forward, state.forward)
    behind, backward_state = mamba(x.flip(1), backward, state.backward)
    both = torch.cat((ahead, behind.flip(1)), -1)
    return F.linear(both, merge, merge_bias), BidirectionalState(forward_state, backward_state)
