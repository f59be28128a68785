"""Batch statistics over the clips of several processes.

Inside `with sync_batch_stats(...)` every batch norm, on either path, uses the moments of all processes' clips, and
their gradients reach all processes. Outside it there is no effect and no cost. All processes have to run the same
network the same number of times, because each norm waits for the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class StatsSync:
    """The batch of all processes, as seen by one of them."""

    present: int  # clips in this process's batch
    total: int  # counted clips of all processes
    counted: bool  # whether this process's clips are included
    group: Any  # of processes; None for all

    @property
    def weight(self) -> float:
        return self.present / self.total if self.counted else 0.0


_current_sync: ContextVar[StatsSync | None] = ContextVar("sync_batch_stats", default=None)


@contextmanager
def sync_batch_stats(present: int, total: int, *, counted: bool = True, group: Any = None) -> Iterator[None]:
    """Inside, batch norms share statistics: this process has `present` of the `total` clips.

    A process without clips runs `present` placeholder clips with `counted` false.
    """
    token = _current_sync.set(StatsSync(present, total, counted, group))
    try:
        yield
    finally:
        _current_sync.reset(token)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def stats_sync() -> StatsSync | None:
    """The current setting; None if statistics are not shared."""
    return _current_sync.get()


def joint_count(count: int) -> int:
    """The number of values over all processes, of which this process has `count`."""
    shared = stats_sync()
    return count if shared is None else count // shared.present * shared.total


def joint_moments(mean: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """First and second moments of any shapes, over all processes; summed in their own precision."""
    shared = stats_sync()
    if shared is None:
        return mean, second
    first, other = _summed(shared, mean, second)
    return first, other


def joint_spread(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Means and (biased) variances of the same shape, over all processes.

    The moments are summed in float64, so that subtracting the squared mean loses no digits.
    """
    shared = stats_sync()
    if shared is None:
        return mean, variance
    wide, dtype = mean.double(), mean.dtype
    joint, square = _summed(shared, wide, variance.double() + wide.square())
    return joint.to(dtype), (square - joint.square()).clamp(min=0).to(dtype)


def _summed(shared: StatsSync, *moments: Tensor) -> list[Tensor]:
    """The weighted sums over processes, in one message."""
    flat = torch.cat([moment.flatten() for moment in moments])
    joint: Tensor = _SumOverProcesses.apply(flat * shared.weight, shared.group)
    parts = joint.split([moment.numel() for moment in moments])
    return [part.view(moment.shape) for part, moment in zip(parts, moments, strict=True)]


class _SumOverProcesses(torch.autograd.Function):
    """The loss of every process depends on the sum, so their gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = x.detach().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
