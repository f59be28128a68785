"""Norm, neuron and temporal filter by the C++ operators."""

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.cpp.call import call, dense, is_bfloat16, or_null
from ripe_mambaspike.ops.norm_fire import FireState, Firing, NormFireInputs, empty_norm_fire
from ripe_mambaspike.ops.operator import gradient_like


def norm_fire(i: NormFireInputs) -> tuple[Tensor, ...]:
    x = i.x.contiguous()
    outputs = empty_norm_fire(i._replace(x=x))
    spikes, _, potential, operand, *finals = outputs
    parameters = (*norm(i.scale, i.shift), *constants(i.firing), float(i.firing.sharpness))
    written = (spikes, or_null(potential), operand, *map(or_null, finals))
    before = state(i.initial_state, i.firing.relaxed)
    call("norm_fire", is_bfloat16(x), i.firing.relaxed, *x.shape, x, *parameters, *before, *written)
    return outputs


def norm_fire_backward(i: NormFireInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """The gradients of x and of the seven parameters, empty for parameters that are None."""
    x = i.x.contiguous()
    own_rows, *affine = norm(i.scale, i.shift)
    tensors = (*affine, *constants(i.firing))
    if own_rows:
        raise InputError("first_step: expected an int where gradients are computed, got a tensor", field="first_step")
    arriving = [dense(grad, x.dtype) for grad in grads[1:4]]
    grad_x = torch.empty_like(x)
    found = [None if p is None else torch.empty_like(p) for p in tensors]
    options = (is_bfloat16(x), i.firing.relaxed)
    call("norm_fire_backward", *options, *x.shape, x, *tensors, *arriving, float(i.firing.sharpness), grad_x, *found)
    given = (i.scale, i.shift, *i.firing[:5])
    return grad_x, *(gradient_like(grad, p, i.firing.decay) for grad, p in zip(found, given, strict=True))


def norm(scale: Tensor | None, shift: Tensor | None) -> tuple[int, Tensor | None, Tensor | None]:
    """Whether scale and shift are per sample (never without a norm), and both as C++ reads them."""
    if scale is None or shift is None:
        return 0, None, None
    return int(scale.ndim == 3), dense(scale, torch.float32), dense(shift, torch.float32)


def constants(firing: Firing) -> list[Tensor | None]:
    """The neuron's constants and the filter's coefficient, as C++ reads them."""
    return [dense(one, torch.float32) for one in firing[:5]]


def state(given: FireState | None, relaxed: bool) -> tuple[Tensor | None, ...]:
    """The initial state, as C++ reads it."""
    if given is None:
        return None, None, None
    spikes = dense(given.last_spikes, torch.float32 if relaxed else torch.uint8)
    return dense(given.membrane, torch.float32), dense(given.membrane_imag, torch.float32), spikes
