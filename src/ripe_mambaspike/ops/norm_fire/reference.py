"""Norm, neuron and temporal filter in plain PyTorch, differentiable, in any precision."""

from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.ops.neurons import NeuronConstants, neuron_steps
from ripe_mambaspike.ops.norm_fire import NormFireInputs
from ripe_mambaspike.ops.tdm import tdm


def norm_fire(i: NormFireInputs) -> tuple[Any, ...]:
    """(spikes, spikes, potential, operand, final membrane, its imaginary part, final spikes); spikes as floats."""
    state = None if i.membrane is None else (i.membrane, i.membrane_imag)
    neuron = NeuronConstants(i.decay, i.rotation, i.gain, i.threshold)
    spikes, potentials, final = neuron_steps(affine(i.x, i.scale, i.shift), neuron, i.sharpness, i.relaxed, state)
    fired = torch.stack(spikes, 1)
    operand = fired
    if i.coefficient is not None:
        before = None if i.last_spikes is None else i.last_spikes.to(fired.dtype).transpose(1, 2)
        operand = tdm(fired.transpose(2, 3), i.coefficient, before)[0].transpose(2, 3)
    return fired, fired, torch.stack(potentials, 1), operand, *final, fired[:, -1]


def affine(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    """scale_t x_t + shift_t: x [B, T, P, C]; scale and shift [T, C] or [B, T, C], or nothing."""
    return x if scale is None or shift is None else scale.unsqueeze(-2) * x + shift.unsqueeze(-2)
