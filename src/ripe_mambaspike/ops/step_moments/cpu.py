"""Mean and variance of every step and channel by the C++ operators."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.cpp.call import call, dense, is_bfloat16


def step_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [B, T, P, C] → mean and biased variance [T, C], float32."""
    x = x.contiguous()
    mean, variance = (x.new_empty((x.shape[1], x.shape[3]), dtype=torch.float32) for _ in range(2))
    call("step_moments", is_bfloat16(x), *x.shape, x, mean, variance)
    return mean, variance


def step_moments_backward(x: Tensor, mean: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
    """[B, T, P, C] and three [T, C] → the gradient of x."""
    x = x.contiguous()
    grad_x = torch.empty_like(x)
    means = (dense(t, torch.float32) for t in (mean, grad_mean, grad_variance))
    call("step_moments_backward", is_bfloat16(x), *x.shape, x, *means, grad_x)
    return grad_x
