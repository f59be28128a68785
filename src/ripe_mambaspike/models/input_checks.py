"""Checks of a network's arguments: the input, a state, the names to observe."""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.config import MIN_SIDE, RipeConfig
from ripe_mambaspike.nn.stage import OBSERVABLE
from ripe_mambaspike.nn.state import State

EXPECTED_INPUT = "a tensor of binned events (batch, steps, 2, height, width)"


def check_input(x: Tensor, max_steps: int | None, dtype: torch.dtype, seen: int = 0, *, training: bool = False) -> None:
    """Raise unless a network of this precision can read x, after `seen` steps of the same recording.

    `max_steps` is None for a network without a limit. In training, non-finite values are not rejected here: the loss
    becomes NaN (`nan_where_not_finite`).
    """
    if not isinstance(x, Tensor):
        raise InputError.expected("x", EXPECTED_INPUT, f"a {type(x).__name__}")
    shape = tuple(x.shape)
    if x.ndim != 5 or shape[2] != 2:
        raise InputError.expected("x", EXPECTED_INPUT, f"shape {shape}")
    if 0 in shape:
        raise InputError.expected("x", "sizes of at least 1", f"shape {shape}")
    if max_steps is not None and seen + shape[1] > max_steps:
        after = f" after {seen}" if seen else ""
        raise InputError.expected("x", f"at most {max_steps} time steps, as the network has", f"{shape[1]}{after}")
    if min(shape[3:]) < MIN_SIDE:
        raise InputError.expected(
            "x", f"at least {MIN_SIDE}×{MIN_SIDE} for three strides of two", f"{shape[3]}×{shape[4]}"
        )
    if x.dtype != dtype and not (torch.is_autocast_enabled(x.device.type) and x.is_floating_point()):
        raise InputError.expected("x", f"{_name(dtype)}, the network's precision", _name(x.dtype))
    if not (training and torch.is_grad_enabled()):
        check_finite(x)


def check_finite(x: Tensor) -> None:
    """Raise for an input with NaN or Inf, which spikes would hide. CPU only; see `nan_where_not_finite`."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        return
    x = x.detach()
    if 0 in x.stride():  # check expanded values once
        x = x[tuple(slice(1) if stride == 0 else slice(None) for stride in x.stride())]
    if not math.isfinite(x.sum(dtype=torch.promote_types(x.dtype, torch.float32)).item()):
        bad = x[~x.isfinite()]
        if len(bad):  # a sum of large numbers may overflow
            raise InputError.expected("x", "finite numbers", f"{float(bad[0])} at {len(bad)} of {x.numel()}")


def nan_where_not_finite(logits: Tensor, x: Tensor) -> Tensor:
    """Logits [B, T, classes], NaN for every sample of x [B, T', 2, H, W] with NaN or Inf in it.

    For training, and if a check would synchronize the device or break a graph: such samples never get a prediction.
    """
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and not torch.is_grad_enabled():
        return logits
    total = x.detach().sum((1, 2, 3, 4), dtype=torch.promote_types(x.dtype, torch.float32))
    total = total.reshape(-1, *([1] * (logits.ndim - 1)))
    return torch.add(logits, total, alpha=0).to(logits.dtype)  # 0 · NaN and 0 · Inf are NaN


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_state(state: State | None, x: Tensor, config: RipeConfig) -> None:
    """Raise unless x [B, T, 2, H, W] can continue from this state."""
    if not state:
        return
    start = "stages.0.first_neuron."
    kept: dict[str, Any] = {name: tuple(value.shape) for name, value in state.items() if name.startswith(start)}
    expected = (x.shape[0], config.stage_channels[0], *config.grids(x.shape[3], x.shape[4])[0])
    for name, shape in (kept or {start + "membrane": None}).items():
        if shape != expected:
            raise InputError.expected("state", f"{name} of shape {expected}", shape)


def check_observe(names: Collection[str]) -> None:
    """Raise unless all of these can be observed."""
    unknown = [name for name in names if name not in OBSERVABLE]
    if isinstance(names, str) or unknown:
        got = repr(names if isinstance(names, str) else unknown[0])
        raise ConfigError.expected("observe", f"some of {', '.join(OBSERVABLE)}", got)
