"""What the transforms ask of their settings and of the tensors they are given."""

import math
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.errors import ConfigError, InputError


def check_number(name: str, value: Any, most: float = 1.0) -> None:
    """A setting that must be a number from 0 to `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= most:
        raise ConfigError(f"{name} is {value!r}; a number from 0 to {most:g} is wanted")


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """A setting that must be a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} is {value!r}; a whole number {span} is wanted")


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; true or false is wanted")


def check_texts(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
        raise ConfigError(f"{name}: expected texts, got {value!r}", field=name)


def check_clips(x: Tensor) -> None:
    """Clips are [B, T, 2, H, W] and floating: mixing makes fractions, and the network wants floats anyway."""
    if x.ndim != 5 or x.shape[2] != 2 or 0 in x.shape:
        raise InputError(f"the clips have shape {tuple(x.shape)}; (B, T, 2, H, W) with no side of 0 is wanted")
    if not x.is_floating_point():
        raise InputError(f"the clips are {x.dtype}; floating-point counts are wanted, such as x.float()")


def check_generator(generator: torch.Generator) -> None:
    if generator.device.type != "cpu":
        raise InputError(
            f"the generator is on {generator.device}; one on the CPU is wanted, for the clips of any device"
        )
