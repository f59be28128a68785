"""Small shape and precision helpers shared by the operators."""

import torch
from torch import Tensor


def per_channel(values: Tensor, trailing: int) -> Tensor:
    """values [C] as [C, 1, ...] with `trailing` ones, to broadcast over positions."""
    return values.reshape(-1, *([1] * trailing))


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 unless it is float64: sums over time are never kept in half precision or as integers."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def like_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the input's precision; where the input was of whole numbers, as it is."""
    return x.to(dtype) if dtype.is_floating_point else x


def packed(x: Tensor) -> Tensor:
    """x laid out in the order of its dimensions: a copy, made without asking whether a traced size is 1."""
    return x.clone(memory_format=torch.contiguous_format)
