"""Norm, neuron and temporal filter, and the norm's statistics, by the C++ operators."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.cpp.call import call, dense, is_bfloat16


def norm_fire(
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
) -> tuple[Tensor, Tensor, Tensor]:
    """x [B, T, P, C] → spikes, potential (empty unless kept), operand."""
    x = x.contiguous()
    spikes = torch.empty_like(x, dtype=x.dtype if relaxed else torch.uint8)
    potential = torch.empty_like(x) if keep_potential else x.new_empty(0)
    operand = torch.empty_like(x)
    given = (*affine(scale, shift), decay, rotation, gain, threshold, coefficient)
    parameters = [dense(p, torch.float32) for p in given]
    outputs = (spikes, potential if keep_potential else None, operand)
    call("norm_fire", is_bfloat16(x), relaxed, *x.shape, x, *parameters, float(sharpness), *outputs)
    return spikes, potential, operand


def norm_fire_backward(
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
) -> tuple[Tensor, ...]:
    """The gradients of x and of the seven parameters, empty where there is no parameter."""
    x = x.contiguous()
    given = (*affine(scale, shift), decay, rotation, gain, threshold, coefficient)
    parameters = [dense(p, torch.float32) for p in given]
    arriving = [dense(grad, x.dtype) for grad in (grad_spikes, grad_potential, grad_operand)]
    grad_x = torch.empty_like(x)
    grads = [None if p is None else torch.empty_like(p) for p in parameters]
    inputs = (x, *parameters, *arriving, float(sharpness))
    call("norm_fire_backward", is_bfloat16(x), relaxed, *x.shape, *inputs, grad_x, *grads)
    originals = (scale, shift, decay, rotation, gain, threshold, coefficient)
    return grad_x, *(_shaped(grad, p, decay) for grad, p in zip(grads, originals, strict=True))


def affine(scale: Tensor | None, shift: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The norm's scale and shift, nothing unless both are there."""
    return (None, None) if scale is None or shift is None else (scale, shift)


def _shaped(grad: Tensor | None, parameter: Tensor | None, decay: Tensor) -> Tensor:
    if parameter is None:
        return decay.new_empty(0)
    return torch.zeros_like(parameter) if grad is None else grad.to(parameter.dtype)
