"""LayerNorm of short rows. PyTorch's own uses a block of threads per row, mostly idle for tokens of width 32."""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.operator import Operator

EPSILON = 1e-5


class RowNormInputs(NamedTuple):
    x: Tensor  # [..., d]
    weight: Tensor  # [d], float32
    bias: Tensor
    dtype: torch.dtype  # of the result


def row_norm(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """LayerNorm over the last dimension: x [..., d], weight and bias [d] float32 → [..., d] in `dtype`."""
    out: Tensor = ROW_NORM(RowNormInputs(x.contiguous(), weight, bias, dtype))
    return out


ROW_NORM = Operator(
    "row_norm",
    RowNormInputs,
    ("out",),
    lambda i: i.x.new_empty(i.x.shape, dtype=i.dtype),
    gradients=("x", "weight", "bias"),
)
