"""The norm's statistics: mean and variance of every step and channel."""

from typing import NamedTuple

from torch import Tensor

from ripe_mambaspike.ops.operator import Operator
from ripe_mambaspike.ops.shapes import sum_dtype


class StepMomentsInputs(NamedTuple):
    x: Tensor  # [B, T, P, C]


def step_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of every step and channel: x [B, T, P, C] → two [T, C], float32."""
    mean, variance = STEP_MOMENTS(StepMomentsInputs(x))
    return mean, variance


def empty_moments(i: StepMomentsInputs) -> tuple[Tensor, Tensor]:
    mean, variance = (i.x.new_empty(i.x.shape[1], i.x.shape[3], dtype=sum_dtype(i.x)) for _ in range(2))
    return mean, variance


STEP_MOMENTS = Operator(
    "step_moments", StepMomentsInputs, ("mean", "variance"), empty_moments, gradients=("x",), saved=("mean",)
)
