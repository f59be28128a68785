"""The network on overlapping windows."""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.models.ripe import RipeMambaSpike


class WindowOutput(NamedTuple):
    """The network's output for the steps of a window so far."""

    logits: Tensor  # [1, steps, num_classes]
    rates: tuple[float, ...]  # mean firing rate of each stage's output
    attention: Tensor  # of the last step [C, h, w]


class ClipBatch:
    """Bins are kept until a window's output is needed, which runs the network on all of them."""

    def __init__(self, model: RipeMambaSpike, rows: int, grid: tuple[int, int], time_steps: int) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self._bins: list[list[Tensor]] = [[] for _ in range(rows)]

    def clear(self, row: int) -> None:
        self._bins[row] = []

    def advance(self, rows: list[int], steps: list[int], bins: list[Tensor]) -> None:
        for row, counts in zip(rows, bins, strict=True):
            self._bins[row].append(counts)

    @torch.no_grad()
    def output(self, row: int, steps: int) -> WindowOutput:
        clip = torch.stack(self._bins[row][:steps]).unsqueeze(0).to(self.device, self.model.dtype)
        out = self.model.run(clip)
        assert out.attention is not None
        return WindowOutput(out.logits.cpu(), tuple(out.rates[1::2].tolist()), out.attention[0, -1].float().cpu())
