"""What a network says about an input it cannot read."""

import math
from collections.abc import Collection

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.config import MIN_SIDE, RipeConfig
from ripe_mambaspike.nn.stage import OBSERVABLE
from ripe_mambaspike.nn.state import State

WANTED = "events binned to (batch, steps, 2, height, width)"


def check_input(x: Tensor, max_steps: int | None, dtype: torch.dtype, seen: int = 0, *, training: bool = False) -> None:
    """Raise unless a network of this precision can read x, after `seen` steps of the same recording.

    `max_steps` is None for a network that takes any number of them. In training what is not finite is left to the
    loss, which is then NaN (`poisoned`).
    """
    if not isinstance(x, Tensor):
        raise InputError(f"the input is a {type(x).__name__}; a tensor of {WANTED} is wanted")
    shape = tuple(x.shape)
    if x.ndim != 5 or shape[2] != 2:
        raise InputError(f"the input has shape {shape}; {WANTED} are wanted")
    if 0 in shape:
        raise InputError(f"the input has shape {shape}; every size must be at least 1")
    if max_steps is not None and seen + shape[1] > max_steps:
        after = f" after {seen} seen" if seen else ""
        raise InputError(f"the input has {shape[1]} time steps{after}; the network was made for at most {max_steps}")
    if min(shape[3:]) < MIN_SIDE:
        raise InputError(f"the input is {shape[3]}×{shape[4]}; three strides of two need at least 8×8")
    if x.dtype != dtype and not (torch.is_autocast_enabled(x.device.type) and x.is_floating_point()):
        raise InputError(f"the input is {_name(x.dtype)}; {_name(dtype)}, the network's own precision, is wanted")
    if not (training and torch.is_grad_enabled()):
        check_finite(x)


def check_finite(x: Tensor) -> None:
    """Raise for an input with NaN or Inf, which spikes would swallow. On a CPU alone; see `poisoned`."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        return
    x = x.detach()
    if 0 in x.stride():  # what is expanded is looked at once
        x = x[tuple(slice(1) if stride == 0 else slice(None) for stride in x.stride())]
    if not math.isfinite(x.sum(dtype=torch.promote_types(x.dtype, torch.float32)).item()):
        bad = x[~x.isfinite()]
        if len(bad):  # a sum of large numbers may overflow
            raise InputError(f"x: expected finite numbers, got {float(bad[0])} at {len(bad)} of {x.numel()}", field="x")


def nan_where_not_finite(logits: Tensor, x: Tensor) -> Tensor:
    """Logits [B, T, classes], NaN for every sample of x [B, T', 2, H, W] with NaN or Inf in it.

    In training, and where looking would wait for the device or break a graph: no such sample ever gets an answer.
    """
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and not torch.is_grad_enabled():
        return logits
    total = x.detach().sum((1, 2, 3, 4), dtype=torch.promote_types(x.dtype, torch.float32))
    return logits + (0 * total).to(logits.dtype).reshape(-1, *([1] * (logits.ndim - 1)))  # 0 · NaN and 0 · Inf are NaN


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_state(state: State | None, x: Tensor, config: RipeConfig) -> None:
    """Raise unless a state can be what x [B, T, 2, H, W] goes on from."""
    if not state:
        return
    name = "stages.0.first_neuron.membrane"
    expected = (x.shape[0], config.stage_channels[0], *config.grids(x.shape[3], x.shape[4])[0])
    got = tuple(state[name].shape) if name in state else None
    if got != expected:
        raise InputError(f"state: expected {name} of shape {expected}, got {got}", field="state")


def check_observe(names: Collection[str]) -> None:
    """Raise unless a run can hand all of these out."""
    unknown = [name for name in names if name not in OBSERVABLE]
    if isinstance(names, str) or unknown:
        got = repr(names) if isinstance(names, str) else repr(unknown[0])
        raise ConfigError(f"observe: expected some of {', '.join(OBSERVABLE)}, got {got}", field="observe")
