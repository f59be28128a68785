"""The affine of a norm with the statistics of a batch, for every step: from mean and variance to scale and shift."""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.backend import kind_for
from ripe_mambaspike.ops.norm import EPSILON
from ripe_mambaspike.ops.operator import Operator


class StepAffineInputs(NamedTuple):
    mean: Tensor  # [T, C]
    variance: Tensor  # [T, C]
    weight: Tensor  # [S, C], S ≥ T
    beta: Tensor  # [S, C]
    bias: Tensor  # [C], in any precision: what a convolution adds to the values; the norm cancels it


def step_affine(mean: Tensor, variance: Tensor, weight: Tensor, beta: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and shift [T, C] that normalize values without the bias, as if they had it; its gradient is zero."""
    inputs = StepAffineInputs(mean, variance, weight, beta, bias)
    # a C++ operator would save nothing: there, plain PyTorch is differentiated
    scale, shift = plain_affine(inputs) if kind_for(mean) == "native" else STEP_AFFINE(inputs)
    return scale, shift


def plain_affine(i: StepAffineInputs) -> tuple[Tensor, Tensor]:
    """The same in plain PyTorch."""
    steps = i.mean.shape[0]
    scale = i.weight[:steps] * torch.rsqrt(i.variance + EPSILON)
    bias = i.bias.to(i.mean.dtype)
    return scale, i.beta[:steps] - (i.mean + bias) * scale + bias * scale


def _empty(i: StepAffineInputs) -> tuple[Tensor, Tensor]:
    return i.mean.new_empty(i.mean.shape), i.mean.new_empty(i.mean.shape)


STEP_AFFINE = Operator(
    "step_affine", StepAffineInputs, ("scale", "shift"), _empty, gradients=("mean", "variance", "weight", "beta")
)
