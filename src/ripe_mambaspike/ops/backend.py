"""Which implementation computes: Triton kernels on a GPU, C++ operators on a CPU, or the plain PyTorch reference.

The choice is made per call from the tensor and from the switch: `with kernels("off"):` or the environment variable
RIPE_KERNELS=off runs the reference everywhere. If the reference is used although kernels were requested, the reason is
logged once.
"""

import importlib
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.errors import ConfigError

LOG = logging.getLogger("ripe_mambaspike")
CHOICES = ("auto", "off", "triton", "native", "plain")
PRECISIONS = (torch.float32, torch.bfloat16)
MIN_CAPABILITY = (8, 0)  # bfloat16 matrix units
MODULES = {"triton": "triton", "native": "cpu", "plain": "reference"}  # of an operator's folder

_choice: ContextVar[str | None] = ContextVar("kernels", default=None)


@contextmanager
def kernels(wanted: str) -> Iterator[None]:
    """Inside, use `auto`, `off` (the reference), or one kind of kernels whatever the device.

    `plain` runs the fused operators by their references, in any precision.
    """
    token = _choice.set(_checked(wanted, "kernels"))
    try:
        yield
    finally:
        _choice.reset(token)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def choice() -> str:
    """The current choice; a compiled network keeps the choice it was compiled with."""
    return _choice.get() or _checked(os.environ.get("RIPE_KERNELS", "auto"), "RIPE_KERNELS")


def backend(x: Tensor, dtype: torch.dtype | None = None) -> str | None:
    """`triton`, `native` (or `plain`), or None for the reference, for x computed in `dtype` (its own unless given)."""
    chosen = choice()
    dtype = dtype or x.dtype
    if chosen == "plain":
        return chosen
    if chosen == "off" or dtype == torch.float64:  # float64 is for comparisons
        return None
    if dtype not in PRECISIONS:
        log_once(f"no kernel computes in {str(dtype).removeprefix('torch.')}; using the reference path")
        return None
    if chosen == "native" and x.device.type != "cpu":  # C++ would dereference another device's pointers
        raise ConfigError.expected("kernels", "a tensor on the CPU for 'native'", x.device.type)
    if chosen in MODULES:
        return chosen
    kind = {"cuda": "triton", "cpu": "native"}.get(x.device.type)
    reason = f"there are none for {x.device.type}" if kind is None else missing_reason(kind, x.device.index)
    if reason is not None:
        log_once(f"no kernels: {reason}; using the reference path")
        return None
    return kind


def precision(x: Tensor) -> torch.dtype:
    """The dtype of matrix products: autocast's where it is enabled, else the input's.

    Autocast leaves float64 alone.
    """
    kind = x.device.type
    cast = x.dtype != torch.float64 and kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if cast else x.dtype


def computing_in(dtype: torch.dtype, x: Tensor) -> torch.autocast:
    """Inside, modules without an operator compute matrix products in `dtype`."""
    return torch.autocast(x.device.type, dtype, enabled=dtype in (torch.bfloat16, torch.float16))


@cache
def implementation(kind: str, folder: str, name: str) -> Callable[..., Any]:
    """One function of an operator's folder (Triton, C++ or reference), imported on first use."""
    found: Callable[..., Any] = getattr(importlib.import_module(f"{folder}.{MODULES[kind]}"), name)
    return found


def kind_for(x: Tensor) -> str:
    """The implementation used for an operator called on x: `triton`, `native` or `plain`."""
    chosen = choice()
    return chosen if chosen in MODULES else "triton" if x.is_cuda else "native"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def missing_reason(kind: str, index: int | None) -> str | None:
    return _missing(kind, index)


@lru_cache
def _missing(kind: str, index: int | None) -> str | None:
    """Why these kernels cannot be used on this machine; None if they can."""
    if kind == "native":
        from ripe_mambaspike.ops.cpp.build import unavailable_reason

        return unavailable_reason()
    capability = torch.cuda.get_device_capability(index)
    if capability < MIN_CAPABILITY:
        return f"the GPU has compute capability {'.'.join(map(str, capability))}, below 8.0"
    try:
        triton = importlib.import_module("triton")
    except ImportError as error:
        return f"Triton cannot be imported ({error})"
    try:
        triton.runtime.driver.active.get_current_target()  # builds the launcher unless it is cached
    except (RuntimeError, OSError, AssertionError, subprocess.CalledProcessError) as error:
        return f"Triton cannot launch kernels ({(str(error) or repr(error)).splitlines()[0]})"
    return None


@lru_cache
def log_once(line: str) -> None:
    """Log each line once."""
    LOG.warning(line)


def _checked(given: str, what: str) -> str:
    if given not in CHOICES:
        raise ConfigError.expected(what, f"one of {', '.join(CHOICES)}", repr(given))
    return given
