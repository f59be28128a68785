"""An exponential moving average (EMA) of the weights: `average ← d·average + (1 − d)·weights` after every step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class AveragedWeights:
    """EMA of a network's parameters. The decay is smaller in early steps, so that the initial weights are forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = list(model.parameters())
        self.values = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, global_step: int) -> None:
        """Update after step `global_step`, counted from 1."""
        decay = min(self.decay, (1 + global_step) / (10 + global_step))
        torch._foreach_lerp_(self.values, [p.detach() for p in self.parameters], 1 - decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the network has the averaged weights; they are swapped back afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, value in zip(self.parameters, self.values, strict=True):
            held = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(held)

    def tensors(self) -> dict[str, Tensor]:
        return {str(index): value for index, value in enumerate(self.values)}
