"""Mean and variance of every step and channel in plain PyTorch."""

from torch import Tensor

from ripe_mambaspike.ops.shapes import at_least_float32
from ripe_mambaspike.ops.step_moments import StepMomentsInputs


def step_moments(i: StepMomentsInputs) -> tuple[Tensor, Tensor]:
    x = at_least_float32(i.x)
    return x.mean((0, 2)), x.var((0, 2), correction=0)
