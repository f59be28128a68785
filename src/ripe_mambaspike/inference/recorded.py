"""The logits of every clip of an evaluation."""

from collections.abc import Callable

import torch
from torch import Tensor

from ripe_mambaspike.models.base import Output, clip_logits


class RecordedLogits:
    """Runs a network and keeps the logits of every clip, in order."""

    def __init__(self, run: Callable[[Tensor], Output]) -> None:
        self._run = run
        self._kept: list[Tensor] = []

    def __call__(self, x: Tensor) -> Output:
        out = self._run(x)
        self._kept.append(out.logits.detach().to("cpu", torch.float32, copy=True))
        return out

    @property
    def steps(self) -> Tensor:
        """The logits of every step of every clip [N, T, classes]."""
        return torch.cat(self._kept)

    @property
    def clips(self) -> Tensor:
        """The logits of every clip [N, classes]."""
        return clip_logits(self.steps)
