"""The leaky neuron by the C++ operators."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.cpp.call import call, dense, is_bfloat16
from ripe_mambaspike.ops.leaky_fire import LeakyFireInputs, empty_leaky_fire
from ripe_mambaspike.ops.operator import gradient_like
from ripe_mambaspike.ops.spikes import SLOPES


def leaky_fire(i: LeakyFireInputs) -> tuple[Tensor, Tensor]:
    x = i.x.contiguous()
    spikes, final = empty_leaky_fire(i)
    decay, gain, initial = _parameters(i)
    call("leaky_fire", is_bfloat16(x), i.hard_reset, *x.shape, x, decay, gain, i.threshold, initial, spikes, final)
    return spikes, final


def leaky_fire_backward(i: LeakyFireInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """The gradients of x, decay, gain and the initial state, which is empty if there is none."""
    x = i.x.contiguous()
    decay, gain, initial = parameters = _parameters(i)
    incoming = dense(grads[0], x.dtype), dense(grads[1], torch.float32)
    kind = i.hard_reset, i.detach_reset, list(SLOPES).index(i.surrogate)
    grad_x, found = torch.empty_like(x), [None if one is None else torch.empty_like(one) for one in parameters]
    numbers = i.threshold, i.sharpness
    call(
        "leaky_fire_backward",
        *(is_bfloat16(x), *kind, *x.shape, x, decay, gain, *numbers, initial, *incoming, grad_x, *found),
    )
    given = i.decay, i.gain, i.initial_state
    return grad_x, *(gradient_like(grad, one, i.decay) for grad, one in zip(found, given, strict=True))


def _parameters(i: LeakyFireInputs) -> list[Tensor | None]:
    """decay, gain and initial state as C++ reads them."""
    return [dense(one, torch.float32) for one in (i.decay, i.gain, i.initial_state)]
