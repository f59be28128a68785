"""The network on overlapping windows: every open window is one row of a batch that advances step by step.

`WindowBatch` keeps the network's state of each window and runs its front end on the next step of several windows at
once, each at its own step. With the fused operators a window's logits are bit-identical to those of its whole clip.
`ClipBatch` keeps the bins and runs the clip when its output is needed: for networks that have no steps, and for
precisions whose steps would round differently.
"""

from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.cuda_graphs import RecordedUpdates
from ripe_mambaspike.models.fused import kernels_cover, prepared_plan, run_front_end, run_head, run_tail
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.state import State


class WindowOutput(NamedTuple):
    """The network's output for the steps of a window so far."""

    logits: Tensor  # [1, steps, num_classes]
    rates: tuple[float, ...]  # mean firing rate of each stage's output, or of each spiking layer
    attention: Tensor | None  # of the last step [C, h, w], if the network has one


class Batch(Protocol):
    """Windows, each in a row of the batch; a row is cleared when a new window takes it."""

    def clear(self, row: int) -> None: ...

    def advance(self, rows: list[int], steps: list[int], bins: list[Tensor]) -> None:
        """The next bin [2, H, W] of each of these windows, which are at these steps."""

    def output(self, row: int, steps: int) -> WindowOutput: ...


@torch.no_grad()
def make_batch(model: Model, rows: int, grid: tuple[int, int], time_steps: int) -> "WindowBatch | ClipBatch":
    """The fastest implementation for this network and machine that is bit-identical to the whole clip."""
    example = torch.empty((1, time_steps, 2, *grid), dtype=model.dtype, device=next(model.parameters()).device)
    if isinstance(model, RipeMambaSpike) and model.dtype == torch.float32 and kernels_cover(model, example):
        return WindowBatch(model, rows, grid, time_steps)
    return ClipBatch(model, rows)


class WindowBatch:
    """All open windows, one step at a time, through the fused operators with the weights as they are now.

    On a GPU, steps and outputs that come again are replayed as CUDA graphs.
    """

    @torch.no_grad()
    def __init__(self, model: RipeMambaSpike, rows: int, grid: tuple[int, int], time_steps: int) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self._neurons = [
            channels * height * width
            for channels, (height, width) in zip(model.config.stage_channels, model.config.grids(*grid), strict=True)
        ]
        example = torch.zeros((1, 1, 2, *grid), dtype=model.dtype, device=self.device)
        self._plan = prepared_plan(model, example)
        front = run_front_end(self._plan, example)
        self._state: State = {name: _zeros(value, (rows,)) for name, value in front.state.items()}
        self._features = _zeros(front.features[:, 0], (rows, time_steps))
        self._attention = _zeros(front.attention[:, 0], (rows, time_steps))
        self._spikes = torch.zeros(rows, len(self._neurons), dtype=torch.int64, device=self.device)
        self._scores = None if front.token_scores is None else _zeros(front.token_scores, (rows,))
        self._used: set[int] = set()  # rows whose state is that of an earlier window
        updated = [*self._state.values(), self._features, self._attention, self._spikes]
        self._step = RecordedUpdates(self._run_step, updated if self._scores is None else [*updated, self._scores])
        self._tails: dict[int, RecordedUpdates[tuple[Tensor, Tensor]]] = {}  # by the number of steps

    def clear(self, row: int) -> None:
        self._used.add(row)

    @torch.inference_mode()
    def advance(self, rows: list[int], steps: list[int], bins: list[Tensor]) -> None:
        for row in self._used.intersection(rows):
            for value in (*self._state.values(), self._spikes):
                value[row].zero_()
        self._used.difference_update(rows)
        x = torch.stack(bins).unsqueeze(1).to(self.device, self.model.dtype)
        index, step = torch.tensor([rows, steps], device=self.device)
        self._step(x, index, step)

    @torch.inference_mode()
    def output(self, row: int, steps: int) -> WindowOutput:
        if steps not in self._tails:
            self._tails[steps] = RecordedUpdates(partial(self._run_tail, steps))
        logits, attention = self._tails[steps](torch.tensor([row], device=self.device))
        spikes = self._spikes[row].tolist()
        rates = tuple(count / (steps * neurons) for count, neurons in zip(spikes, self._neurons, strict=True))
        return WindowOutput(logits.cpu(), rates, attention.float().cpu())

    def _run_step(self, x: Tensor, index: Tensor, step: Tensor) -> None:
        """The next step [B, 1, 2, H, W] of the windows in rows `index` [B], which are at `step` [B]."""
        front = run_front_end(self._plan, x, state=self._state, first_step=step, rows=index)
        self._features[index, step] = front.features[:, 0]
        self._attention[index, step] = front.attention[:, 0]
        self._spikes.index_add_(0, index, front.rates)
        if self._scores is not None and front.token_scores is not None:
            self._scores[index] = front.token_scores

    def _run_tail(self, steps: int, row: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [1, steps, classes] of the window in this row [1], and the attention of its last step."""
        features = _row_of(self._features[:, :steps], row)
        maps = _row_of(self._attention[:, :steps].permute(0, 1, 3, 4, 2), row).permute(0, 1, 4, 2, 3)
        scores = None if self._scores is None else _row_of(self._scores, row)
        logits = run_head(self._plan, run_tail(self._plan, features, maps, self.model.select(scores)))
        return logits, maps[0, -1]


class ClipBatch:
    """Bins are kept until a window's output is needed, which runs the network on all of them."""

    def __init__(self, model: Model, rows: int) -> None:
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
        rates = out.rates[1::2] if isinstance(self.model, RipeMambaSpike) else out.rates
        attention = None if out.attention is None else out.attention[0, -1].float().cpu()
        return WindowOutput(out.logits.cpu(), tuple(rates.tolist()), attention)


def _row_of(values: Tensor, row: Tensor) -> Tensor:
    """One row [1, ...] of values: a view, or on a GPU a copy, since a graph cannot know which row a view would have."""
    return values.index_select(0, row) if row.is_cuda else values[int(row) :][:1]


def _zeros(example: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Zeros for so many of example[0], with its order of dimensions in memory."""
    order = sorted(range(1, example.ndim), key=example.stride, reverse=True)
    made = example.new_zeros(*sizes, *(example.shape[dim] for dim in order))
    first = len(sizes) - 1
    return made.permute(*range(len(sizes)), *(first + 1 + order.index(dim) for dim in range(1, example.ndim)))
