"""Norm, neuron and temporal filter by the C++ operators."""

from collections.abc import Sequence
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
    initial, final = states(i, finals)
    written = (spikes, or_null(potential), operand, *final)
    call("norm_fire", is_bfloat16(x), i.relaxed, *x.shape, x, *parameters(i), float(i.sharpness), *initial, *written)
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


def states(i: Any, finals: list[Tensor]) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The initial state with its rows, and where the final one is written: to the same memory if there are rows."""
    kinds = (torch.float32, torch.float32, torch.float32 if i.relaxed else torch.uint8)
    given = (i.membrane, i.membrane_imag, i.last_spikes)
    initial = [dense(one, kind) for one, kind in zip(given, kinds, strict=True)]
    if i.state_rows is None:
        return [*initial, None], [or_null(one) for one in finals]
    check_in_place(given, initial)
    return [*initial, i.state_rows], initial


def check_in_place(given: Sequence[Tensor | None], read: Sequence[Tensor | None]) -> None:
    """Raise if a state that is updated in place had to be copied to be read."""
    if any(one is not other for one, other in zip(given, read, strict=True)):
        raise InputError(
            "state_rows: expected a contiguous state (float32, spikes as bytes), got another", field="state_rows"
        )
