"""Norm over time, neuron and the next convolution's temporal filter in one operator.

    x_t ← scale_t · x_t + shift_t        the norm, with one scale and shift a step and channel
    u_t = decay · u_{t−1} + gain · x_t   the membrane potential (complex, with a rotation, for CSiLIF)
    s_t = 1 where u_t ≥ threshold        the spikes; u_t is then reset by subtraction
    o_t = s_t + λ (s_t − s_{t−1})        the operand: what the next convolution reads

Glossary: B samples, T steps, P = H·W positions in raster order, C channels. Activations are [B, T, P, C] contiguous,
float32 or bfloat16; per-channel parameters and states are float32. `coefficient` is λ, `sharpness` the surrogate's.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.neurons import NeuronConstants
from ripe_mambaspike.ops.operator import Operator, empty_if, grad_proxy_of, select_steps, spikes_as
from ripe_mambaspike.ops.shapes import sum_dtype

__all__ = ["FireOutput", "FireState", "Firing", "NeuronConstants", "NormFireInputs", "norm_fire", "spikes_as"]


class Firing(NamedTuple):
    """A neuron by the constants of its step, the filter after it, each [C], and how it fires."""

    decay: Tensor
    rotation: Tensor | None
    gain: Tensor
    threshold: Tensor
    coefficient: Tensor | None  # λ of the next convolution's filter
    relaxed: bool = False
    sharpness: float = 2.0


class FireState(NamedTuple):
    """The state of a neuron and of the filter after it, each [B, P, C].

    With `rows` [B], sample b has row rows[b] of these tensors, and the C++ operators update them in place; then no
    final state is requested.
    """

    membrane: Tensor  # after the reset, float32
    membrane_imag: Tensor | None  # the imaginary part, of a neuron with rotation
    last_spikes: Tensor | None  # uint8, float32 when relaxed; None for zeros
    rows: Tensor | None = None  # int64, each one once


class FireOutput(NamedTuple):
    spikes: Tensor  # [B, T, P, C], uint8, or x's precision when relaxed
    grad_proxy: Tensor  # receives the spikes' gradient
    potential: Tensor  # before the reset, x's dtype; empty unless requested
    operand: Tensor  # (1 + λ) s_t − λ s_{t−1} in x's precision: the spikes themselves without a coefficient


class NormFireInputs(NamedTuple):
    x: Tensor  # [B, T, P, C]
    scale: Tensor | None  # [T, C], or [B, T, C] where samples are at different steps
    shift: Tensor | None
    firing: Firing
    keep_potential: bool = True
    initial_state: FireState | None = None
    output_final_state: bool = False


def norm_fire(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    firing: Firing,
    *,
    keep_potential: bool = True,
    first_step: int | Tensor = 0,
    initial_state: FireState | None = None,
    output_final_state: bool = False,
) -> tuple[FireOutput, FireState | None]:
    """x [B, T, P, C] → spikes, potential and operand of all steps, and the final state if requested.

    scale, shift: tables [S, C] of which the rows from `first_step` (an int, or one a sample [B]) on are used, or [1, C]
    shared by all steps. Gradients need `initial_state=None` and `output_final_state=False`.
    """
    scale, shift = (select_steps(table, first_step, x.shape[1]) for table in (scale, shift))
    found = NORM_FIRE(NormFireInputs(x, scale, shift, firing, keep_potential, initial_state, output_final_state))
    out = FireOutput(*found[:4])
    return out, final_state(found[4:], out.spikes, firing) if output_final_state else None


def final_state(finals: tuple[Tensor, ...], spikes: Tensor, firing: Firing) -> FireState:
    """The state from an operator's last three outputs; hard spikes of the last step are not written twice."""
    membrane, membrane_imag, last_spikes = finals
    last = last_spikes if last_spikes.numel() else spikes[:, -1].flatten(1, -2)
    return FireState(membrane, None if firing.rotation is None else membrane_imag, last)


def empty_finals(firing: Firing, wanted: bool, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The last three outputs of every operator that ends in a neuron: membrane, its imaginary part, relaxed spikes."""
    shape = (x.shape[0], x[0, 0, ..., 0].numel(), x.shape[-1])
    kinds = (wanted, wanted and firing.rotation is not None, wanted and firing.relaxed)
    membrane, membrane_imag, last_spikes = (empty_if(one, x, shape, sum_dtype(x)) for one in kinds)
    return membrane, membrane_imag, last_spikes


def empty_norm_fire(i: NormFireInputs) -> tuple[Tensor, ...]:
    """All outputs, uninitialized."""
    x = i.x
    spikes = x.new_empty(x.shape, dtype=x.dtype if i.firing.relaxed else torch.uint8)
    potential = empty_if(i.keep_potential, x, x.shape)
    finals = empty_finals(i.firing, i.output_final_state, x)
    return spikes, grad_proxy_of(x), potential, x.new_empty(x.shape), *finals


FINALS = ("final_membrane", "final_membrane_imag", "final_spikes")
NORM_FIRE = Operator(
    "norm_fire",
    NormFireInputs,
    ("spikes", "grad_proxy", "potential", "operand", *FINALS),
    empty_norm_fire,
    gradients=("x", "scale", "shift", *Firing._fields[:5]),
    state=(*FireState._fields, "output_final_state"),
)
