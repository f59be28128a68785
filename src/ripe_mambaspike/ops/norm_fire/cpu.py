"""Norm, neuron and temporal filter by the C++ operators."""

from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.cpp.call import call, dense, is_bfloat16, or_null
from ripe_mambaspike.ops.norm_fire import PARAMETERS, NormFireInputs, empty_norm_fire
from ripe_mambaspike.ops.operator import gradient_like


def norm_fire(i: NormFireInputs) -> tuple[Tensor, ...]:
    x = i.x.contiguous()
    outputs = empty_norm_fire(i._replace(x=x))
    spikes, _, potential, operand, *finals = outputs
    written = (spikes, or_null(potential), operand, *map(or_null, finals))
    call("norm_fire", is_bfloat16(x), i.relaxed, *x.shape, x, *parameters(i), float(i.sharpness), *initial(i), *written)
    return outputs


def norm_fire_backward(i: NormFireInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """The gradients of x and of the seven parameters, empty for parameters that are None."""
    x = i.x.contiguous()
    own_rows, *tensors = parameters(i)
    if own_rows:
        raise InputError("first_step: expected an int where gradients are computed, got a tensor", field="first_step")
    arriving = [dense(grad, x.dtype) for grad in grads[1:4]]
    grad_x = torch.empty_like(x)
    found = [None if p is None else torch.empty_like(p) for p in tensors]
    options = (is_bfloat16(x), i.relaxed)
    call("norm_fire_backward", *options, *x.shape, x, *tensors, *arriving, float(i.sharpness), grad_x, *found)
    given = (getattr(i, name) for name in PARAMETERS)
    return grad_x, *(gradient_like(grad, p, i.decay) for grad, p in zip(found, given, strict=True))


def parameters(i: Any) -> list[Any]:
    """The norm's arguments, then the neuron's parameters and the filter's coefficient, as C++ reads them."""
    return [*norm(i), *(dense(getattr(i, name), torch.float32) for name in PARAMETERS[2:])]


def norm(i: Any) -> tuple[int, Tensor | None, Tensor | None]:
    """Whether scale and shift are per sample (never without a norm), and both as C++ reads them."""
    if i.scale is None or i.shift is None:
        return 0, None, None
    return int(i.scale.ndim == 3), dense(i.scale, torch.float32), dense(i.shift, torch.float32)


def initial(i: Any) -> list[Tensor | None]:
    """The initial state, as C++ reads it."""
    spikes = torch.float32 if i.relaxed else torch.uint8
    return [dense(i.membrane, torch.float32), dense(i.membrane_imag, torch.float32), dense(i.last_spikes, spikes)]
