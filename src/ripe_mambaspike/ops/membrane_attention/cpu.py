"""DS-MPA, and DS-MPA fused with the neuron after it, in C++."""

from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.cpp.call import call, dense, is_bfloat16, or_null
from ripe_mambaspike.ops.membrane_attention import AttendFireInputs, AttendInputs, empty_attend_fire
from ripe_mambaspike.ops.norm_fire.cpu import check_in_place, check_shapes, constants, norm, states
from ripe_mambaspike.ops.operator import empty_if, gradient_like


def attend(i: AttendInputs) -> tuple[Tensor, Tensor]:
    out = i.features.new_empty(i.features.shape)
    attention = empty_if(i.keep_attention, out, out.shape)
    neuron, state, finals = (None,) * 5, (None,) * 4, (None,) * 4
    weights = (*_weights(i, i.potential.dtype), dense(i.gain, torch.float32))
    inputs = (*_wide(i), *norm(i.scale, i.shift), *weights, *neuron, 0.0, _before(i), *state)
    call("attend", *_kinds(i), 0, *out.shape, *inputs, out, or_null(attention), None, *finals)
    return out, attention


def attend_fire(i: AttendFireInputs) -> tuple[Tensor, ...]:
    outputs = empty_attend_fire(i)
    spikes, operand, attention, *finals = outputs
    weights = (*_weights(i, i.potential.dtype), dense(i.attention_gain, torch.float32))
    neuron = (*constants(i.firing), float(i.firing.sharpness))
    initial, final = states(i.initial_state, i.features, i.firing.relaxed, finals)
    before = _before(i)
    rows = None if i.initial_state is None else i.initial_state.rows
    check_shapes([i.input_spikes], rows, i.features)
    if rows is not None:
        check_in_place([i.input_spikes], [before])
    inputs = (*_wide(i), *norm(i.scale, i.shift), *weights, *neuron, before, *initial)
    written = (operand, or_null(attention), spikes, None if rows is None else before, *final)
    call("attend", *_kinds(i), i.firing.relaxed, *operand.shape, *inputs, *written)
    return outputs


def attend_backward(i: AttendInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Gradients of potential, spikes, features, scale, shift, the three weights and gain, in the inputs' dtypes."""
    rows, *affine = norm(i.scale, i.shift)
    if rows:
        raise InputError.expected("first_step", "an int where gradients are computed", "a tensor")
    small = [*affine, *_weights(i, torch.float32), dense(i.gain, torch.float32)]
    wide = [torch.empty_like(i.potential, memory_format=torch.contiguous_format) for _ in range(3)]
    found = [None if p is None else torch.empty_like(p) for p in small]
    incoming = [dense(grad, i.potential.dtype) for grad in grads]
    call("attend_backward", *_kinds(i), *i.potential.shape, *_wide(i), *small, *incoming, *wide, *found)
    given = (i.scale, i.shift, i.query, i.key, i.value, i.gain)
    return *wide, *(gradient_like(grad, p, i.gain) for grad, p in zip(found, given, strict=True))


def _wide(i: Any) -> list[Tensor | None]:
    """Potential, spikes and features, contiguous and in one dtype, except for spikes stored as bytes."""
    dtype = i.potential.dtype
    return [dense(i.potential), dense(i.spikes, _spike_dtype(i)), dense(i.features, dtype)]


def _before(i: Any) -> Tensor | None:
    return dense(i.input_spikes, _spike_dtype(i))


def _spike_dtype(i: Any) -> torch.dtype:
    return torch.uint8 if i.spikes.dtype == torch.uint8 else i.potential.dtype


def _weights(i: Any, dtype: torch.dtype) -> list[Tensor | None]:
    return [dense(weight, dtype) for weight in (i.query, i.key, i.value)]


def _kinds(i: Any) -> tuple[int, int]:
    """Whether the activations are bfloat16 and whether the spikes are bytes."""
    return is_bfloat16(i.potential), int(i.spikes.dtype == torch.uint8)
