"""The network on overlapping windows: every open window is one row of a batch that advances step by step.

`WindowBatch` keeps the network's state of each window and runs its front end on the next step of several windows at
once, each at its own step. With the fused operators a window's logits are bit-identical to those of its whole clip.
`ClipBatch` keeps the bins and runs the clip when its output is needed: for networks and precisions whose steps would
round differently.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ripe_mambaspike.models.base import FrontEnd
from ripe_mambaspike.models.fused import kernels_cover, prepared_plan, run_front_end, run_head, run_tail
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.state import State

OBSERVED_OUTPUTS = ("spike_counts",)


class WindowOutput(NamedTuple):
    """The network's output for the steps of a window so far."""

    logits: Tensor  # [1, steps, num_classes]
    rates: tuple[float, ...]  # mean firing rate of each stage's output
    attention: Tensor  # of the last step [C, h, w]


class Batch(Protocol):
    """Windows, each in a row of the batch; a row is cleared when a new window takes it."""

    def clear(self, row: int) -> None: ...

    def advance(self, rows: list[int], steps: list[int], bins: list[Tensor]) -> None:
        """The next bin [2, H, W] of each of these windows, which are at these steps."""

    def output(self, row: int, steps: int) -> WindowOutput: ...


@torch.no_grad()
def make_batch(model: RipeMambaSpike, rows: int, grid: tuple[int, int], time_steps: int) -> "WindowBatch | ClipBatch":
    """The fastest implementation for this network and machine that is bit-identical to the whole clip."""
    example = torch.empty((1, time_steps, 2, *grid), dtype=model.dtype, device=next(model.parameters()).device)
    stepwise = model.dtype == torch.float32 and kernels_cover(model, example)
    return (WindowBatch if stepwise else ClipBatch)(model, rows, grid, time_steps)


class WindowBatch:
    """All open windows, one step at a time, through the fused operators with the weights as they are now."""

    def __init__(self, model: RipeMambaSpike, rows: int, grid: tuple[int, int], time_steps: int) -> None:
        self.model, self.rows, self.time_steps = model, rows, time_steps
        self._neurons = [
            channels * height * width
            for channels, (height, width) in zip(model.config.stage_channels, model.config.grids(*grid), strict=True)
        ]
        self.device = next(model.parameters()).device
        with torch.no_grad():
            self._plan = prepared_plan(model, torch.empty((1, 1, 2, *grid), dtype=model.dtype, device=self.device))
        self._states: list[tuple[State, int] | None] = [None] * rows  # the state of a batch, and the window's row in it
        self._kept: State = {}  # what `output` needs: features and attention [rows, T, ...], and spikes so far

    def clear(self, row: int) -> None:
        self._states[row] = None
        for values in self._kept.values():
            values[row].zero_()

    @torch.no_grad()
    def advance(self, rows: list[int], steps: list[int], bins: list[Tensor]) -> None:
        x = torch.stack(bins).unsqueeze(1).to(self.device, self.model.dtype)
        index, step = torch.tensor(rows, device=self.device), torch.tensor(steps, device=self.device)
        state = _join([self._states[row] for row in rows])
        front = run_front_end(self._plan, x, state=state, first_step=step, observe=OBSERVED_OUTPUTS, want_rates=False)
        for place, row in enumerate(rows):
            self._states[row] = (front.state, place)
        kept = self._kept = self._kept or self._make_kept(front)
        kept["features"][index, step] = front.features[:, 0]
        kept["attention"][index, step] = front.attention[:, 0]
        counts = [front.observed[f"stages.{i}.second_neuron.spike_counts"] for i in range(len(self._neurons))]
        kept["spikes"][index] += torch.stack(counts, 1)
        if front.token_scores is not None:
            kept["scores"][index] = front.token_scores

    def _make_kept(self, front: FrontEnd) -> State:
        features, attention, scores = front.features, front.attention, front.token_scores
        kept = {
            "features": features.new_zeros(self.rows, self.time_steps, *features.shape[2:]),
            "attention": attention.new_zeros(self.rows, self.time_steps, *attention.shape[2:]),
            "spikes": features.new_zeros(self.rows, len(self._neurons), dtype=torch.int64),
        }
        return kept if scores is None else kept | {"scores": scores.new_zeros(self.rows, *scores.shape[1:])}

    @torch.no_grad()
    def output(self, row: int, steps: int) -> WindowOutput:
        model, kept = self.model, self._kept
        features, attention = (kept[name][row : row + 1, :steps] for name in ("features", "attention"))
        scores = kept["scores"][row : row + 1] if "scores" in kept else None
        logits = run_head(self._plan, run_tail(self._plan, features, attention, model.select(scores)))
        spikes = kept["spikes"][row].tolist()
        rates = tuple(count / (steps * neurons) for count, neurons in zip(spikes, self._neurons, strict=True))
        return WindowOutput(logits.cpu(), rates, attention[0, -1].float().cpu())


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


def _join(states: list[tuple[State, int] | None]) -> State | None:
    """One state from rows of several, zeros for None. Rows that follow each other in one state are not copied."""
    runs: list[tuple[State | None, int, int]] = []
    for found in states:
        state, place = found or (None, 0)
        if runs and state is not None and runs[-1][0] is state and runs[-1][2] == place:
            runs[-1] = (state, runs[-1][1], place + 1)
        else:
            runs.append((state, place, place + 1))
    known = next((state for state, _, _ in runs if state is not None), None)
    if known is None:
        return None

    def pieces(name: str) -> list[Tensor]:
        return [
            torch.zeros_like(known[name][:1]) if state is None else state[name][start:stop]
            for state, start, stop in runs
        ]

    return {name: pieces(name)[0] if len(runs) == 1 else torch.cat(pieces(name)) for name in known}
