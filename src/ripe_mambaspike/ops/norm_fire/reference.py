"""Norm, neuron and temporal filter in plain PyTorch, differentiable, in any precision."""

from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.ops.neurons import NeuronConstants, neuron_steps
from ripe_mambaspike.ops.norm_fire import NormFireInputs
from ripe_mambaspike.ops.tdm import tdm


def norm_fire(i: NormFireInputs) -> tuple[Any, ...]:
    """(spikes, spikes, potential, operand, final membrane, its imaginary part, final spikes); spikes as floats."""
    firing, state = i.firing, i.initial_state
    neuron, membrane = NeuronConstants(*firing[:4]), None if state is None else state[:2]
    drive = affine(i.x, i.scale, i.shift)
    spikes, potentials, final = neuron_steps(drive, neuron, firing.sharpness, firing.relaxed, membrane)
    fired = torch.stack(spikes, 1)
    operand = fired
    if firing.coefficient is not None:
        last = None if state is None else state.last_spikes
        before = None if last is None else last.to(fired.dtype).transpose(1, 2)
        operand = tdm(fired.transpose(2, 3), firing.coefficient, before)[0].transpose(2, 3)
    return fired, fired, torch.stack(potentials, 1), operand, *final, fired[:, -1]


def affine(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    """scale_t x_t + shift_t: x [B, T, P, C]; scale and shift [T, C] or [B, T, C], or nothing."""
    return x if scale is None or shift is None else scale.unsqueeze(-2) * x + shift.unsqueeze(-2)
