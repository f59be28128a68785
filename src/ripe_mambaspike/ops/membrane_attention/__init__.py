"""Membrane-potential attention (DS-MPA) over normalized features, and for inference fused with the neuron after it.

    X_t ← scale_t · X_t + shift_t                        the norm of the features
    A_t = φ(Q_t)(φ(K_t)ᵀ V_t) / (φ(Q_t)·Σφ(K_t) + ε)     Q, K from the potential, V from the spikes of the step before
    out_t = X_t + γ A_t X_t

Glossary: B samples, T steps, P = H·W positions, C channels; activations [B, T, P, C] contiguous. `query`, `key` and
`value` are the projections [C, C] (out × in), `gain` is γ [C]. The state is the spikes of the step before the first one
[B, P, C]; without a state A is 0 at the first step. `reference.py` has the attention itself and its variants.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.norm_fire import FINALS, FireState, Firing, empty_finals, final_state
from ripe_mambaspike.ops.operator import Operator, empty_if, select_steps


class AttentionWeights(NamedTuple):
    query: Tensor  # [C, C], out × in, the activations' precision
    key: Tensor
    value: Tensor
    gain: Tensor  # [C], float32


class AttendInputs(NamedTuple):
    potential: Tensor
    spikes: Tensor
    grad_proxy: Tensor
    features: Tensor
    scale: Tensor | None  # [T, C], or [B, T, C] where samples are at different steps
    shift: Tensor | None
    query: Tensor
    key: Tensor
    value: Tensor
    gain: Tensor
    keep_attention: bool
    input_spikes: Tensor | None = None  # the initial state


class AttendFireInputs(NamedTuple):
    potential: Tensor
    spikes: Tensor
    features: Tensor
    scale: Tensor | None
    shift: Tensor | None
    query: Tensor
    key: Tensor
    value: Tensor
    attention_gain: Tensor
    firing: Firing
    keep_attention: bool
    input_spikes: Tensor | None = None  # the initial state of the attention
    initial_state: FireState | None = None  # of the neuron
    output_final_state: bool = False


class AttendFireState(NamedTuple):
    input_spikes: Tensor  # last input spikes of the attention [B, P, C]
    neuron: FireState  # its rows are those of the input spikes, too


class AttendFireOutput(NamedTuple):
    spikes: Tensor  # [B, T, P, C], uint8, or the features' precision when relaxed
    operand: Tensor  # what the next convolution reads
    attention: Tensor  # A, empty unless kept


def attend(
    potential: Tensor,
    spikes: Tensor,
    grad_proxy: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weights: AttentionWeights,
    keep_attention: bool = False,
    *,
    first_step: int | Tensor = 0,
    initial_state: Tensor | None = None,
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """((X + γ A X, A or an empty tensor), final state) of potential, spikes and features [B, T, P, C].

    scale, shift: tables [S, C], used from `first_step` on, or [1, C] for all steps. The kernels hold A in the hull of
    the values up to rounding, the reference exactly.
    """
    scale, shift = (select_steps(table, first_step, features.shape[1]) for table in (scale, shift))
    wide = (potential, spikes, grad_proxy, features)
    out, attention = ATTEND(AttendInputs(*wide, scale, shift, *weights, keep_attention, initial_state))
    return (out, attention), spikes[:, -1]


def attend_fire(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weights: AttentionWeights,
    firing: Firing,
    *,
    keep_attention: bool = False,
    first_step: int | Tensor = 0,
    initial_state: AttendFireState | None = None,
    output_final_state: bool = False,
) -> tuple[AttendFireOutput, AttendFireState | None]:
    """`attend`, then the neuron and the next filter, without a gradient."""
    scale, shift = (select_steps(table, first_step, features.shape[1]) for table in (scale, shift))
    before = initial_state or (None, None)
    given = (potential, spikes, features, scale, shift, *weights, firing, keep_attention, *before, output_final_state)
    found = ATTEND_FIRE(AttendFireInputs(*given))
    out = AttendFireOutput(*found[:3])
    if not output_final_state:
        return out, None
    return out, AttendFireState(spikes[:, -1], final_state(found[3:], out.spikes, firing))


def empty_attend_fire(i: AttendFireInputs) -> tuple[Tensor, ...]:
    """All outputs of `attend_fire`, uninitialized."""
    x = i.features
    spikes = x.new_empty(x.shape, dtype=x.dtype if i.firing.relaxed else torch.uint8)
    finals = empty_finals(i.firing, i.output_final_state, x)
    return spikes, x.new_empty(x.shape), empty_if(i.keep_attention, x, x.shape), *finals


def _empty_modulated(i: AttendInputs) -> tuple[Tensor, Tensor]:
    x = i.features
    return x.new_empty(x.shape), empty_if(i.keep_attention, x, x.shape)


ATTEND_GRADIENTS = (
    "potential", "grad_proxy", "features", "scale", "shift", "query", "key", "value", "gain"
)  # fmt: skip
ATTEND = Operator(
    "attend",
    AttendInputs,
    ("modulated", "attention"),
    _empty_modulated,
    gradients=ATTEND_GRADIENTS,
    state=("input_spikes",),
)
ATTEND_FIRE = Operator("attend_fire", AttendFireInputs, ("spikes", "operand", "attention", *FINALS), empty_attend_fire)
