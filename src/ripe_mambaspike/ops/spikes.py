"""The firing functions: a step with a surrogate gradient, or its smooth relaxation."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _atan_slope(distance: Tensor, sharpness: float) -> Tensor:
    return 0.5 * sharpness / (1 + (0.5 * math.pi * sharpness * distance).square())


def _sigmoid_slope(distance: Tensor, sharpness: float) -> Tensor:
    spike = torch.sigmoid(sharpness * distance)
    return sharpness * spike * (1 - spike)


def _triangle_slope(distance: Tensor, sharpness: float) -> Tensor:
    return sharpness * (1 - sharpness * distance.abs()).clamp(min=0)


# Surrogate gradients by name, functions of d = u − threshold and of the sharpness α:
#   atan      α/2 / (1 + (π/2 · α · d)²)      the paper's Eq. (atan), SpikingJelly's ATan
#   sigmoid   α · σ(αd) · (1 − σ(αd))         SpikingJelly's Sigmoid
#   triangle  max(0, γ − |d|) / γ², γ = 1/α   TET's
SLOPES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "atan": _atan_slope,
    "sigmoid": _sigmoid_slope,
    "triangle": _triangle_slope,
}


class _StepSurrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, distance: Tensor, surrogate: str, sharpness: float) -> Tensor:
        ctx.save_for_backward(distance)
        ctx.surrogate, ctx.sharpness = surrogate, sharpness
        return torch.ge(distance, 0, out=torch.empty_like(distance))  # without a boolean temporary

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (distance,) = ctx.saved_tensors
        return grad * SLOPES[ctx.surrogate](distance, ctx.sharpness), None, None


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


class _FiringRate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spikes: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = spikes.shape, spikes.dtype
        return spikes.mean(dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return (grad / math.prod(ctx.shape)).to(ctx.dtype).expand(ctx.shape)


def firing_rate(spikes: Tensor) -> Tensor:
    """The mean of all spikes [], in float32. Its gradient, the same for each spike, is not stored for each."""
    if torch.compiler.is_exporting() or torch.compiler.is_compiling() or not spikes.requires_grad:
        return spikes.mean(dtype=torch.float32)
    rate: Tensor = _FiringRate.apply(spikes)
    return rate


def fire(distance: Tensor, sharpness: float, relaxed: bool = False) -> Tensor:
    """Spikes from `distance = U − v`: 1 where it is ≥ 0, with the paper's Eq. (atan) as gradient.

    Relaxed, σ(sharpness · distance) with its true gradient.
    """
    if relaxed:
        return torch.sigmoid(sharpness * distance)
    return fire_as("atan", distance, sharpness)


def fire_at(potential: Tensor, threshold: Tensor, sharpness: float, relaxed: bool = False) -> Tensor:
    """Spikes where the potential reaches the threshold: `fire` of their difference."""
    if torch.compiler.is_exporting():  # compared directly: a runtime may flush a tiny difference to zero
        return (potential >= threshold).to(potential.dtype)
    return fire(potential - threshold, sharpness, relaxed)


def fire_fast_sigmoid(distance: Tensor, slope: float = 25.0) -> Tensor:
    """The baseline's spike: 1 where distance > 0, gradient 1 / (1 + slope·|distance|)²."""
    if torch.compiler.is_exporting():
        return (distance > 0).to(distance.dtype)
    return _StepFastSigmoid.apply(distance, slope)


def fire_as(surrogate: str, distance: Tensor, sharpness: float) -> Tensor:
    """Spikes where `distance = u − threshold` is ≥ 0, with the gradient of this name in `SLOPES`."""
    if torch.compiler.is_exporting():  # a graph has no gradient and cannot express a result written to `out`
        return (distance >= 0).to(distance.dtype)
    return _StepSurrogate.apply(distance, surrogate, sharpness)
