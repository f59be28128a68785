"""Norm over time, neuron and the next convolution's temporal filter in one operator."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.backend import run
from ripe_mambaspike.ops.neurons import CSILIF_RESET
from ripe_mambaspike.ops.operator import carrier_of, nothing_like, or_none
from ripe_mambaspike.ops.spikes import fire
from ripe_mambaspike.ops.tdm import tdm


class Neuron(NamedTuple):
    """Any of the three neurons by what its step computes, per channel [C], float32.

    Without rotation `u ← decay·u + gain·x`, fire at the threshold, subtract it (LIF, SiLIF). With it the state is
    complex, `m ← (decay + j·rotation)·m + gain·x`, the potential 2 Re m, and a spike takes 1/2 off m (CSiLIF).
    """

    decay: Tensor
    rotation: Tensor | None
    gain: Tensor
    threshold: Tensor


class Fired(NamedTuple):
    spikes: Tensor  # [B, T, P, C], uint8, or x's precision when relaxed
    carrier: Tensor  # their gradient's way back
    potential: Tensor  # before reset, x's precision; empty unless kept
    operand: Tensor  # (1 + λ) s_t − λ s_{t−1} in x's precision: the spikes themselves without a coefficient


def norm_fire(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    neuron: Neuron,
    coefficient: Tensor | None,
    *,
    relaxed: bool = False,
    sharpness: float = 2.0,
    keep_potential: bool = True,
) -> Fired:
    """x [B, T, P, C] → `scale_t x_t + shift_t` (both [T, C]) → neuron over all steps → spikes, potential, operand.

    coefficient λ [C] is the temporal filter of the convolution that reads the spikes.
    """
    return Fired(*torch.ops.ripe.norm_fire(x, scale, shift, *neuron, coefficient, relaxed, sharpness, keep_potential))


def norm_fire_reference(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    neuron: Neuron,
    coefficient: Tensor | None,
    *,
    relaxed: bool = False,
    sharpness: float = 2.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(spikes, potential, operand), differentiable, in x's precision."""
    decay, rotation, gain, threshold = neuron
    normed = x if scale is None or shift is None else scale[:, None] * x + shift[:, None]
    real = imag = torch.zeros_like(x[:, 0])
    spikes, potentials = [], []
    for x_t in normed.unbind(1):
        if rotation is None:
            potential = decay * real + gain * x_t
            spike = fire(potential - threshold, sharpness, relaxed)
            real = potential - threshold * spike
        else:
            real, imag = decay * real - rotation * imag + gain * x_t, decay * imag + rotation * real
            potential = 2 * real
            spike = fire(potential - threshold, sharpness, relaxed)
            real = real - CSILIF_RESET * spike
        spikes.append(spike)
        potentials.append(potential)
    fired = torch.stack(spikes, 1)
    operand = fired if coefficient is None else tdm(fired.transpose(2, 3), coefficient)[0].transpose(2, 3)
    return fired, torch.stack(potentials, 1), operand


def spikes_as(spikes: Tensor, carrier: Tensor) -> Tensor:
    """Spikes as numbers of the carrier's precision, differentiable: for whatever has no operator of its own."""
    return _SpikesAs.apply(spikes, carrier)


class _SpikesAs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spikes: Tensor, carrier: Tensor) -> Tensor:
        return spikes.to(carrier.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad


@torch.library.custom_op("ripe::norm_fire", mutates_args=())
def _norm_fire(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    decay: Tensor,
    rotation: Tensor | None,
    gain: Tensor,
    threshold: Tensor,
    coefficient: Tensor | None,
    relaxed: bool,
    sharpness: float,
    keep_potential: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = (relaxed, sharpness, keep_potential)
    arguments = (scale, shift, decay, rotation, gain, threshold, coefficient, *options)
    spikes, potential, operand = run("norm_fire", "norm_fire", x, *arguments)
    return spikes, carrier_of(x), potential, operand


@_norm_fire.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    relaxed, _, keep_potential = rest[-3:]
    spikes = torch.empty_like(x, dtype=x.dtype if relaxed else torch.uint8)
    potential = torch.empty_like(x) if keep_potential else nothing_like(x)
    return spikes, carrier_of(x), potential, torch.empty_like(x)


@torch.library.custom_op("ripe::norm_fire_backward", mutates_args=())
def _norm_fire_backward(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    decay: Tensor,
    rotation: Tensor | None,
    gain: Tensor,
    threshold: Tensor,
    coefficient: Tensor | None,
    grad_spikes: Tensor | None,
    grad_potential: Tensor | None,
    grad_operand: Tensor | None,
    relaxed: bool,
    sharpness: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    arguments = (scale, shift, decay, rotation, gain, threshold, coefficient)
    grads = (grad_spikes, grad_potential, grad_operand)
    return tuple(run("norm_fire", "norm_fire_backward", x, *arguments, *grads, relaxed, sharpness))


@_norm_fire_backward.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    parameters, decay = rest[:7], rest[2]
    return torch.empty_like(x), *(nothing_like(decay) if p is None else torch.empty_like(p) for p in parameters)


def _norm_fire_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:8])
    ctx.options = inputs[8:10]


def _norm_fire_gradient(ctx: Any, _: Any, spikes: Any, potential: Any, operand: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    grads = torch.ops.ripe.norm_fire_backward(*saved, spikes, potential, operand, *ctx.options)
    return (*or_none(saved, grads), None, None, None)


_norm_fire.register_autograd(_norm_fire_gradient, setup_context=_norm_fire_context)
