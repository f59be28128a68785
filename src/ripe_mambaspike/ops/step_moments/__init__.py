"""The norm's statistics: mean and variance of every step and channel."""

from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.ops.backend import run


def step_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of every step and channel: x [B, T, P, C] → two [T, C], float32."""
    mean, variance = torch.ops.ripe.step_moments(x)
    return mean, variance


def step_moments_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean((0, 2)), x.var((0, 2), correction=0)


@torch.library.custom_op("ripe::step_moments", mutates_args=())
def _step_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(run("step_moments", "step_moments", x))


@_step_moments.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    shape = (x.shape[1], x.shape[3])
    return x.new_empty(shape, dtype=torch.float32), x.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("ripe::step_moments_backward", mutates_args=())
def _step_moments_backward(x: Tensor, mean: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
    out: Tensor = run("step_moments", "step_moments_backward", x, mean, grad_mean, grad_variance)
    return out


@_step_moments_backward.register_fake
def _(x: Tensor, mean: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
    return torch.empty_like(x)


def _step_moments_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0], output[0])


def _step_moments_gradient(ctx: Any, mean: Tensor, variance: Tensor) -> Tensor:
    return torch.ops.ripe.step_moments_backward(*ctx.saved_tensors, mean, variance)


_step_moments.register_autograd(_step_moments_gradient, setup_context=_step_moments_context)
