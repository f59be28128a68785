"""Dual-stream membrane-potential attention (DS-MPA), its variants, and the fused operators in plain PyTorch.

Queries and keys come from the membrane potential of this step, values from the spikes of the step before; the
positions of one step are the sequence. Tensors are [B, T, C, N] with N = H·W.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.ops.graph_nodes import graph_node, keeps_node
from ripe_mambaspike.ops.membrane_attention import AttendFireInputs, AttendInputs
from ripe_mambaspike.ops.membrane_attention.feature_maps import (
    FEATURES,
    batched_product,
    exponential_attention,
    featured_attention,
    normalizer_of,
    positive_feature,
)
from ripe_mambaspike.ops.norm_fire import NormFireInputs
from ripe_mambaspike.ops.norm_fire.reference import affine, norm_fire
from ripe_mambaspike.ops.operator import spikes_as
from ripe_mambaspike.ops.tdm import shift

EPSILON = 1e-5
Factors = tuple[Tensor, ...]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def project(x: Tensor, factors: Factors) -> Tensor:
    """x [B, T, C, N] through each factor in turn: dense [out, in], or grouped [groups, out, in]."""
    batch, steps = x.shape[:2]
    for factor in factors:
        if factor.ndim == 2 and keeps_node("project"):
            x = project_node(factor, x)
        elif factor.ndim == 2:
            x = torch.bmm(factor.expand(batch * steps, -1, -1), x.flatten(0, 1)).unflatten(0, (batch, steps))
        else:
            groups = factor.shape[0]
            x = batched_product(factor.expand(batch, steps, -1, -1, -1), x.unflatten(2, (groups, -1))).flatten(2, 3)
    return x


@graph_node("project", lambda factor, x: x.new_empty(*x.shape[:2], factor.shape[0], x.shape[3]))
def project_node(factor: Tensor, x: Tensor) -> Tensor:
    """x [B, T, C, N] through one dense factor [out, in]."""
    return factor @ x


def normalizer(query: Tensor, key: Tensor) -> Tensor:
    """`φ(Q)·Σ_j φ(K_j) + ε` for every position. [B, T, C, N] twice → [B, T, 1, N]."""
    return normalizer_of(positive_feature(query), positive_feature(key).sum(-1, keepdim=True), EPSILON)


def convex_attention(
    query: Tensor, key: Tensor, value: Tensor, *, feature_map: str = "elu", epsilon: float = EPSILON
) -> Tensor:
    """`A = φ(Q)(φ(K)ᵀV) / (φ(Q)·Σφ(K) + ε)`, Eq. (dsmpa-attn): [B, T, C, N] three times → [B, T, C, N].

    Each A is a convex combination of the values and zero; it is clamped so that rounding cannot leave that hull.
    `feature_map` is the name of φ (`feature_maps.FEATURE_MAPS`).
    """
    if feature_map == "exp":
        return exponential_attention(query, key, value, epsilon)
    query, key = (FEATURES[feature_map](one).to(one.dtype) for one in (query, key))  # autocast would widen some
    return featured_attention(query, key, value, epsilon)


def sigmoid_attention(query: Tensor, key: Tensor, value: Tensor, block: int = 512) -> Tensor:
    """`A = σ(QKᵀ)V`, the unnormalized control, over blocks of queries so that N×N is never materialized."""
    if torch.compiler.is_exporting():  # the number of blocks would be baked into the graph
        return batched_product(value, torch.sigmoid(batched_product(key, query, transposed=0)))
    out = [value @ torch.sigmoid(key.transpose(-1, -2) @ q) for q in query.split(block, -1)]
    return torch.cat(out, -1)


def ds_mpa(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    query: Factors,
    key: Factors,
    value: Factors,
    gain: Tensor,
    *,
    attend: Attention = convex_attention,
    initial_state: Tensor | None = None,
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """`X + γ A X` with A from the potential and the spikes of the step before, Eq. (dsmpa-mod).

    potential, spikes, features [B, T, C, N]; the factors project C → C; gain [C]; state: last spikes [B, C, N].
    Returns ((modulated features, A), final_state). Without a state the first step has V = 0 and passes unchanged.
    """
    previous, final_state = shift(spikes, initial_state)
    attention = attend(project(potential, query), project(potential, key), project(previous, value))
    scaled = attention * gain[:, None].to(attention.dtype)
    return (torch.addcmul(features, scaled, features), attention), final_state


def sigmoid_gate(potential: Tensor, features: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The cheap control: `A = σ(W U + b)` and `A X`. [B, T, C, N] twice, weight [C, C] → (gated, A)."""
    projected = project(potential, (weight,)) if torch.compiler.is_exporting() else weight @ potential
    gate = torch.sigmoid(projected + bias[:, None])
    return gate * features, gate


def attend(i: AttendInputs) -> tuple[Tensor, Tensor]:
    """The fused operator in plain PyTorch, differentiable: (X + γ A X, A), both [B, T, P, C]."""
    spikes, features = spikes_as(i.spikes, i.grad_proxy), affine(i.features, i.scale, i.shift)
    before = None if i.input_spikes is None else i.input_spikes.to(i.potential.dtype).mT
    weights = ((i.query,), (i.key,), (i.value,), i.gain)
    (out, attention), _ = ds_mpa(i.potential.mT, spikes.mT, features.mT, *weights, initial_state=before)
    return out.mT, attention.mT


def attend_fire(i: AttendFireInputs) -> tuple[Any, ...]:
    """(spikes, operand, A, final membrane, its imaginary part, final spikes), spikes as floats."""
    weights = (i.query, i.key, i.value, i.attention_gain)
    norm = (i.scale, i.shift)
    out, attention = attend(
        AttendInputs(i.potential, i.spikes, i.potential, i.features, *norm, *weights, True, i.input_spikes)
    )
    fired = norm_fire(NormFireInputs(out, None, None, i.firing, False, i.initial_state))
    spikes, _, _, operand, *finals = fired
    return spikes, operand, attention, *finals
