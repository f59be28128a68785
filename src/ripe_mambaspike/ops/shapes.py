"""Small shape and precision helpers shared by the operators."""

import torch
from torch import Tensor


def per_channel(values: Tensor, trailing: int) -> Tensor:
    """values [C] as [C, 1, ...] with `trailing` ones, to broadcast over positions."""
    return values.reshape(-1, *([1] * trailing))


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 unless it is float64: sums over time are never in half precision or integers."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def sum_dtype(x: Tensor) -> torch.dtype:
    """The dtype of sums and states of x: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def like_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the input's dtype; unchanged if the input had integers."""
    return x.to(dtype) if dtype.is_floating_point else x


def packed(x: Tensor) -> Tensor:
    """x contiguous in the order of its dimensions: a copy, made without a guard on traced sizes of 1."""
    return x.clone(memory_format=torch.contiguous_format)
