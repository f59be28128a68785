"""Checks of the transforms' settings and inputs."""

import math
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.errors import ConfigError, InputError


def check_number(name: str, value: Any, most: float = 1.0) -> None:
    """A setting that must be a number from 0 to `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= most:
        raise ConfigError.expected(name, f"a number from 0 to {most:g}", repr(value))


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """A setting that must be a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError.expected(name, f"an int {span}", repr(value))


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError.expected(name, "true or false", repr(value))


def check_texts(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
        raise ConfigError.expected(name, "strings", repr(value))


def check_clips(x: Tensor) -> None:
    """Raise unless clips are floating-point [B, T, 2, H, W]; mixing produces fractions."""
    if x.ndim != 5 or x.shape[2] != 2 or 0 in x.shape:
        raise InputError.expected("clips", "shape (B, T, 2, H, W) with no side of 0", tuple(x.shape))
    if not x.is_floating_point():
        raise InputError.expected("clips", "floating-point counts, such as x.float()", str(x.dtype))


def check_generator(generator: torch.Generator) -> None:
    if generator.device.type != "cpu":
        raise InputError.expected("generator", "one on the CPU, for clips of any device", str(generator.device))
