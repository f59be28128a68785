"""Norm, neuron and temporal filter by the C++ operators."""

from collections.abc import Sequence

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
    initial, final = states(i.initial_state, x, i.firing.relaxed, finals)
    written = (spikes, or_null(potential), operand, *final)
    call("norm_fire", is_bfloat16(x), i.firing.relaxed, *x.shape, x, *parameters, *initial, *written)
    return outputs


def norm_fire_backward(i: NormFireInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """The gradients of x and of the seven parameters, empty for parameters that are None."""
    x = i.x.contiguous()
    own_rows, *affine = norm(i.scale, i.shift)
    tensors = (*affine, *constants(i.firing))
    if own_rows:
        raise InputError.expected("first_step", "an int where gradients are computed", "a tensor")
    incoming = [dense(grad, x.dtype) for grad in grads[1:4]]
    grad_x = torch.empty_like(x)
    found = [None if p is None else torch.empty_like(p) for p in tensors]
    options = (is_bfloat16(x), i.firing.relaxed)
    call("norm_fire_backward", *options, *x.shape, x, *tensors, *incoming, float(i.firing.sharpness), grad_x, *found)
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


def states(
    state: FireState | None, x: Tensor, relaxed: bool, finals: Sequence[Tensor]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The initial state with its rows, and where the final one is written: to the same memory if there are rows.

    x [B, T, P, C] is what the neuron reads.
    """
    written = [or_null(one) for one in finals]
    if state is None:
        return [None] * 4, written
    check_shapes(state[:3], state.rows, x)
    kinds = (torch.float32, torch.float32, torch.float32 if relaxed else torch.uint8)
    initial = [dense(one, kind) for one, kind in zip(state[:3], kinds, strict=True)]
    if state.rows is not None:
        check_in_place(state[:3], initial)
        written = initial
    return [*initial, state.rows], written


def check_shapes(state: Sequence[Tensor | None], rows: Tensor | None, x: Tensor) -> None:
    """Raise unless every state is [B, P, C], or with `rows` any number of such rows: C++ checks nothing."""
    batch, each = x.shape[0], x.shape[2:]
    for one in state:
        if one is not None and (one.shape[1:] != each or (rows is None and one.shape[0] != batch)):
            raise InputError(
                f"initial_state: expected the shape {[batch, *each]}, got {list(one.shape)}", field="initial_state"
            )
    if rows is not None and (rows.dtype != torch.int64 or rows.shape != (batch,) or not rows.is_contiguous()):
        raise InputError(
            f"state_rows: expected int64 [{batch}], got {rows.dtype} {list(rows.shape)}",
            field="state_rows",
        )


def check_in_place(given: Sequence[Tensor | None], read: Sequence[Tensor | None]) -> None:
    """Raise if a state that is updated in place had to be copied to be read."""
    if any(one is not other for one, other in zip(given, read, strict=True)):
        raise InputError.expected("state_rows", "a contiguous state (float32, spikes as bytes)", "another")
