"""Small shape and precision helpers shared by the operators."""

import torch
from torch import Tensor


def per_channel(values: Tensor, trailing: int) -> Tensor:
    """values [C] as [C, 1, ...] with `trailing` ones, to broadcast over positions."""
    return values.reshape(-1, *([1] * trailing))


def at_least_float32(x: Tensor) -> Tensor:
    """Half-precision tensors in float32, others as they are: states are never kept in half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
