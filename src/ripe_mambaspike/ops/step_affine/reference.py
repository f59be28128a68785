"""The affine of a norm in plain PyTorch."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.norm import EPSILON
from ripe_mambaspike.ops.step_affine import StepAffineInputs


def step_affine(i: StepAffineInputs) -> tuple[Tensor, Tensor]:
    steps = i.mean.shape[0]
    scale = i.weight[:steps] * torch.rsqrt(i.variance + EPSILON)
    bias = i.bias.to(i.mean.dtype)
    return scale, i.beta[:steps] - (i.mean + bias) * scale + bias * scale
