"""Mean and variance of every step and channel by the C++ operators."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.cpp.call import call, dense, is_bfloat16
from ripe_mambaspike.ops.step_moments import StepMomentsInputs, empty_moments


def step_moments(i: StepMomentsInputs) -> tuple[Tensor, Tensor]:
    x = i.x.contiguous()
    mean, variance = empty_moments(i)
    call("step_moments", is_bfloat16(x), *x.shape, x, mean, variance)
    return mean, variance


def step_moments_backward(i: StepMomentsInputs, grads: tuple[Tensor | None, ...], mean: Tensor) -> tuple[Tensor]:
    x = i.x.contiguous()
    grad_x = torch.empty_like(x)
    incoming = (torch.zeros_like(mean) if grad is None else dense(grad, torch.float32) for grad in grads)
    call("step_moments_backward", is_bfloat16(x), *x.shape, x, mean, *incoming, grad_x)
    return (grad_x,)
