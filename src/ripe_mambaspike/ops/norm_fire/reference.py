"""Norm, neuron and temporal filter in plain PyTorch, differentiable, in any precision."""

from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.ops.neurons import CSILIF_RESET
from ripe_mambaspike.ops.norm_fire import NormFireInputs
from ripe_mambaspike.ops.spikes import fire
from ripe_mambaspike.ops.tdm import tdm


def norm_fire(i: NormFireInputs) -> tuple[Tensor, ...]:
    """(spikes, spikes, potential, operand, final membrane, its imaginary part, final spikes); spikes as numbers."""
    spikes, potentials = [], []
    real, imag = begin(i, i.x[:, 0])
    for x_t in affine(i.x, i.scale, i.shift).unbind(1):
        if i.rotation is None:
            potential = i.decay * real + i.gain * x_t
            spike = fire(potential - i.threshold, i.sharpness, i.relaxed)
            real = potential - i.threshold * spike
        else:
            real, imag = i.decay * real - i.rotation * imag + i.gain * x_t, i.decay * imag + i.rotation * real
            potential = 2 * real
            spike = fire(potential - i.threshold, i.sharpness, i.relaxed)
            real = real - CSILIF_RESET * spike
        spikes.append(spike)
        potentials.append(potential)
    fired = torch.stack(spikes, 1)
    operand = fired
    if i.coefficient is not None:
        before = None if i.last_spikes is None else i.last_spikes.to(fired.dtype).transpose(1, 2)
        operand = tdm(fired.transpose(2, 3), i.coefficient, before)[0].transpose(2, 3)
    return fired, fired, torch.stack(potentials, 1), operand, real, imag, fired[:, -1]


def affine(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    """scale_t x_t + shift_t: x [B, T, P, C]; scale and shift [T, C] or [B, T, C], or nothing."""
    return x if scale is None or shift is None else scale.unsqueeze(-2) * x + shift.unsqueeze(-2)


def begin(i: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The membrane before the first step: the initial state, or zeros like x [B, P, C]."""
    zeros = torch.zeros_like(x)
    return tuple(zeros if one is None else one.to(x.dtype) for one in (i.membrane, i.membrane_imag))  # type: ignore[return-value]
