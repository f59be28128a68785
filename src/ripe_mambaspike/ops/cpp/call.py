"""How Python calls a C++ operator: tensors as pointers, ints as int64, floats as double."""

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.backend import PRECISIONS
from ripe_mambaspike.ops.cpp.build import library


def call(name: str, *arguments: Tensor | int | float | None) -> None:
    """Run one operator; PyTorch's number of threads is its last argument."""
    function = _function(name)
    if function.argtypes is None:
        function.restype = None
        function.argtypes = [*map(_c_type, arguments), ctypes.c_int64]
    function(*[one.data_ptr() if isinstance(one, Tensor) else one for one in arguments], torch.get_num_threads())


@cache
def _function(name: str) -> Any:
    return getattr(library(), f"ripe_{name}")


def dense(x: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
    """x contiguous, in `dtype` if one is given."""
    if x is None or (x.dtype == (dtype or x.dtype) and x.is_contiguous()):
        return x
    return (x if dtype is None else x.to(dtype)).contiguous()


def or_null(x: Tensor) -> Tensor | None:
    """An output; None if it has no elements because it was not requested."""
    return x if x.numel() else None


def is_bfloat16(x: Tensor) -> int:
    """1 for bfloat16, 0 for float32: the dtype that an operator reads; others are refused."""
    if x.dtype not in PRECISIONS:
        raise InputError(f"dtype: expected float32 or bfloat16, got {x.dtype}", field="dtype")
    return int(x.dtype == torch.bfloat16)


def _c_type(argument: Tensor | int | float | None) -> Any:
    if argument is None or isinstance(argument, Tensor):
        return ctypes.c_void_p
    return ctypes.c_int64 if isinstance(argument, int) else ctypes.c_double
