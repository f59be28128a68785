"""The firing function: a step with the ATan surrogate gradient, or its smooth relaxation."""

import math
from typing import Any

import torch
from torch import Tensor


class _StepATan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, distance: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(distance)
        ctx.sharpness = sharpness
        return torch.ge(distance, 0, out=torch.empty_like(distance))  # without a boolean temporary

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (distance,) = ctx.saved_tensors
        slope = 0.5 * ctx.sharpness / (1 + (0.5 * math.pi * ctx.sharpness * distance).square())
        return grad * slope, None


class _StepFastSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, distance: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(distance)
        ctx.slope = slope
        return torch.gt(distance, 0, out=torch.empty_like(distance))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (distance,) = ctx.saved_tensors
        return grad / (1 + ctx.slope * distance.abs()).square(), None


def fire(distance: Tensor, sharpness: float, relaxed: bool = False) -> Tensor:
    """Spikes from `distance = U − v`: 1 where it is ≥ 0, with the paper's Eq. (atan) as gradient.

    Relaxed, σ(sharpness · distance) with its true gradient.
    """
    if relaxed:
        return torch.sigmoid(sharpness * distance)
    return _StepATan.apply(distance, sharpness)


def fire_at(potential: Tensor, threshold: Tensor, sharpness: float, relaxed: bool = False) -> Tensor:
    """Spikes where the potential reaches the threshold: `fire` of their difference."""
    if torch.compiler.is_exporting():  # compared directly: a runtime may flush a tiny difference to zero
        return (potential >= threshold).to(potential.dtype)
    return fire(potential - threshold, sharpness, relaxed)


def fire_fast_sigmoid(distance: Tensor, slope: float = 25.0) -> Tensor:
    """The baseline's spike: 1 where distance > 0, gradient 1 / (1 + slope·|distance|)²."""
    return _StepFastSigmoid.apply(distance, slope)
