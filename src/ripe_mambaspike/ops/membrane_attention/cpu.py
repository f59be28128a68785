"""DS-MPA, and DS-MPA with the neuron that reads it, by the C++ operators."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.cpp.call import call, dense, is_bfloat16
from ripe_mambaspike.ops.norm_fire.cpu import affine


def attend(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gain: Tensor,
    keep_attention: bool,
) -> tuple[Tensor, Tensor]:
    """[B, T, P, C] three times → (modulated features, A or an empty tensor)."""
    inputs = _inputs(potential, spikes, features, scale, shift, query, key, value, gain)
    out = torch.empty_like(features, memory_format=torch.contiguous_format)
    attention = torch.empty_like(out) if keep_attention else out.new_empty(0)
    neuron = (None,) * 5
    kept = attention if keep_attention else None
    call("attend", *_kinds(potential, spikes), 0, *out.shape, *inputs, *neuron, 0.0, out, kept, None)
    return out, attention


def attend_fire(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gain: Tensor,
    decay: Tensor,
    rotation: Tensor | None,
    drive: Tensor,
    threshold: Tensor,
    coefficient: Tensor | None,
    relaxed: bool,
    sharpness: float,
    keep_attention: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """[B, T, P, C] three times → (spikes, operand, A or an empty tensor)."""
    inputs = _inputs(potential, spikes, features, scale, shift, query, key, value, gain)
    neuron = [dense(p, torch.float32) for p in (decay, rotation, drive, threshold, coefficient)]
    operand = torch.empty_like(features, memory_format=torch.contiguous_format)
    fired = torch.empty_like(operand, dtype=operand.dtype if relaxed else torch.uint8)
    attention = torch.empty_like(operand) if keep_attention else operand.new_empty(0)
    outputs = (operand, attention if keep_attention else None, fired)
    call("attend", *_kinds(potential, spikes), relaxed, *operand.shape, *inputs, *neuron, float(sharpness), *outputs)
    return fired, operand, attention


def _inputs(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gain: Tensor,
    precision: torch.dtype | None = None,
) -> list[Tensor | None]:
    """The inputs as the operators read them, contiguous; the weights in `precision` or else like the activations."""
    dtype = potential.dtype
    wide = [dense(potential), dense(spikes, None if spikes.dtype == torch.uint8 else dtype), dense(features, dtype)]
    norm = [dense(p, torch.float32) for p in affine(scale, shift)]
    weights = [dense(w, precision or dtype) for w in (query, key, value)]
    return [*wide, *norm, *weights, dense(gain, torch.float32)]


def _kinds(potential: Tensor, spikes: Tensor) -> tuple[int, int]:
    """Whether the activations are bfloat16 and whether the spikes are bytes."""
    return is_bfloat16(potential), int(spikes.dtype == torch.uint8)


def attend_backward(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gain: Tensor,
    grad_out: Tensor | None,
    grad_attention: Tensor | None,
) -> tuple[Tensor, ...]:
    """Gradients of potential, spikes, features, scale, shift, the three weights and gain, in the inputs' precision."""
    inputs = _inputs(potential, spikes, features, scale, shift, query, key, value, gain, torch.float32)
    arriving = [dense(grad, potential.dtype) for grad in (grad_out, grad_attention)]
    wide = [torch.empty_like(potential, memory_format=torch.contiguous_format) for _ in range(3)]
    small = [None if p is None else torch.empty_like(p) for p in inputs[3:]]
    call("attend_backward", *_kinds(potential, spikes), *potential.shape, *inputs, *arriving, *wide, *small)
    given = (scale, shift, query, key, value, gain)
    grads = (_like(grad, p, gain) for grad, p in zip(small, given, strict=True))
    return *wide, *grads


def _like(grad: Tensor | None, parameter: Tensor | None, gain: Tensor) -> Tensor:
    """The gradient in its parameter's precision, empty where there is no parameter."""
    if parameter is None:
        return gain.new_empty(0)
    return torch.zeros_like(parameter) if grad is None else grad.to(parameter.dtype)
