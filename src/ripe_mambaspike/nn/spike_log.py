"""Collects the spikes of neurons while a network runs, whatever it is built from.

    with SpikeLog() as log:
        features = model.forward_features(x)
    rates = log.rates()

A neuron reports with `log_spikes`. The log belongs to the calling thread's context, so that two passes never mix.
"""

from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType

import torch
from torch import Tensor, nn

from ripe_mambaspike.ops.spikes import firing_rate

_current: ContextVar["SpikeLog | None"] = ContextVar("spike_log", default=None)


class SpikeLog:
    """The spikes of every neuron that fired inside the `with` block, in the order of computation."""

    def __init__(self) -> None:
        self.entries: list[tuple[nn.Module, Tensor]] = []
        self._token: Token[SpikeLog | None] | None = None

    def __enter__(self) -> "SpikeLog":
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._token is not None
        _current.reset(self._token)

    def rates(self, like: Tensor) -> Tensor:
        """The mean firing rate of every layer [layers], in float32; empty for a network without spikes."""
        if not self.entries:
            return like.new_empty(0, dtype=torch.float32)
        return torch.stack([firing_rate(spikes) for _, spikes in self.entries])

    def by_name(self, names: Mapping[nn.Module, str]) -> dict[str, Tensor]:
        """{"stem.0.neuron.spikes": spikes, …}; if a neuron fires several times, its later spikes are numbered."""
        found: dict[str, Tensor] = {}
        for module, spikes in self.entries:
            name, number = names[module], 2
            key = f"{name}.spikes"
            while key in found:
                key, number = f"{name}.{number}.spikes", number + 1
            found[key] = spikes
        return found


def log_spikes(module: nn.Module, spikes: Tensor) -> None:
    """Report the spikes of a neuron to the log of this context, if there is one."""
    log = _current.get()
    if log is not None:
        log.entries.append((module, spikes))
