"""The deployed network's second half for export: tokens, the hierarchy of blocks, and the head."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.deploy.export import graph_ops as ops
from ripe_mambaspike.deploy.export.graph_scan import scan
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.hierarchy import Hierarchy, Transition
from ripe_mambaspike.nn.mamba import BidirectionalMamba, Mamba
from ripe_mambaspike.nn.mixers import GRUBlock
from ripe_mambaspike.nn.tokens import TokenSelection, keep_tokens
from ripe_mambaspike.ops.mamba_inner.reference import MambaWeights, causal_conv


class Tail(nn.Module):
    """features [B, T, N, d] and attention [B, T, C, h, w] of a whole recording → logits [B, T, classes]."""

    def __init__(self, model: RipeMambaSpike) -> None:
        super().__init__()
        self.config = model.config
        self.attention = model.bridge.attention
        self.tokens: TokenSelection | None = None if model.config.num_tokens is None else model.tokens
        self.hierarchy, self.head = model.hierarchy, model.head

    def forward(self, features: Tensor, attention: Tensor, *salience: Tensor) -> Tensor:
        indices = None
        if self.tokens is not None:
            total, earliness = salience
            score = self.tokens.activity * total + self.tokens.earliness * earliness
            indices = ops.salient_tokens(score, cast("int", self.config.num_tokens))
        attended = ops.packed(attention.flatten(3).transpose(2, 3))
        tokens = keep_tokens(features, indices) + self.attention(keep_tokens(attended, indices))
        logits: Tensor = self.head(_climb(self.hierarchy, tokens).mean(2))
        return logits


def _climb(hierarchy: Hierarchy, tokens: Tensor) -> Tensor:
    """[B, T, k, d_1] → [B, T, k', d_last]."""
    tokens = ops.pool_tokens(hierarchy.norm(tokens), hierarchy.first_ratio)
    for level, transition in enumerate(hierarchy.transitions):
        if isinstance(transition, Transition):
            tokens = transition.norm(transition.widen(ops.pool_tokens(tokens, transition.ratio)))
        if len(hierarchy.blocks):
            sequence = tokens.flatten(1, 2)
            mixed = sequence + _mix(hierarchy.blocks[level], sequence)
            tokens = mixed.unflatten(1, (tokens.shape[1], tokens.shape[2]))
    return tokens


def _mix(block: nn.Module, x: Tensor) -> Tensor:
    """A block without its residual: [B, L, d] → [B, L, d]."""
    if isinstance(block, BidirectionalMamba):
        return _bidirectional(block, x)
    if isinstance(block, GRUBlock):
        return _gru(block, x)
    out: Tensor = block(x)
    return out


def _bidirectional(block: BidirectionalMamba, x: Tensor) -> Tensor:
    """Both directions go through one scan."""
    x = block.norm(x)
    directions = ((_weights(block.forward_mamba), x), (_weights(block.backward_mamba), x.flip(1)))
    inner, gate, delta, into, out_of = (
        torch.stack(parts) for parts in zip(*(_prepare(*d) for d in directions), strict=True)
    )
    decay = -torch.exp(torch.stack([weights.A_log for weights, _ in directions])).unsqueeze(1)
    skip = torch.stack([weights.D for weights, _ in directions])[:, None, None]
    y = (scan(inner, delta, decay, into, out_of) + inner * skip) * F.silu(gate)
    ahead, behind = (
        F.linear(part, weights.out_proj) for part, (weights, _) in zip(y.unbind(), directions, strict=True)
    )
    return F.linear(torch.cat((ahead, behind.flip(1)), -1), block.merge.weight, block.merge.bias)


def _weights(mamba: Mamba) -> MambaWeights:
    conv, step = mamba.conv1d, mamba.dt_proj
    taps = (mamba.in_proj.weight, conv.weight.squeeze(1), conv.bias, mamba.x_proj.weight)
    return MambaWeights(*taps, step.weight, step.bias, mamba.A_log, mamba.D, mamba.out_proj.weight)


def _prepare(weights: MambaWeights, x: Tensor) -> tuple[Tensor, ...]:
    """What the scan reads of x [B, L, d]: inner values, gate, steps [B, L, E]; weights in and out [B, L, N]."""
    rank, states = weights.dt_proj.shape[1], weights.A_log.shape[1]
    inner, gate = F.linear(x, weights.in_proj).chunk(2, -1)
    inner = F.silu(causal_conv(inner, weights.conv1d_weight, weights.conv1d_bias)[0])
    step, into, out_of = F.linear(inner, weights.x_proj).split((rank, states, states), -1)
    delta = F.softplus(F.linear(step, weights.dt_proj, weights.dt_bias))
    return inner, gate, delta, into, out_of


def _gru(block: GRUBlock, x: Tensor) -> Tensor:
    """With the weights read by name, so that stored ones are expanded."""
    gru: Any = block.gru
    weights = [getattr(gru, name) for name in gru._flat_weights_names]
    start = x.new_zeros(2, x.shape[0], gru.hidden_size)
    mixed = torch.gru(block.norm(x), start, weights, True, 1, 0.0, False, True, True)[0]
    return F.linear(mixed, block.merge.weight, block.merge.bias)
