"""The affine of a norm in plain PyTorch."""

from torch import Tensor

from ripe_mambaspike.ops.step_affine import StepAffineInputs, plain_affine


def step_affine(i: StepAffineInputs) -> tuple[Tensor, Tensor]:
    return plain_affine(i)
