"""A causal network on a stream: one state of constant size, a prediction every hop, no windows.

Every bin is one step of the network. A prediction is the mean of the logits over the last T steps, as many as a
training clip has; before so many steps have been seen it is an early one.
"""

from collections import deque
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.incremental import ClosedBin, RegularBins, edge_of
from ripe_mambaspike.inference.stream.windows import WindowResult
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.state import State

RESET_AFTER_WINDOWS = 4  # of silence, after which the state has decayed and is reset


class CausalStep(NamedTuple):
    """One of the last T steps."""

    start_us: int
    events: int
    logits: Tensor  # [1, classes]
    rates: tuple[float, ...]


class CausalStream(RegularBins):
    """Bins of `window_us / time_steps`; the network's state has one size however long the stream is."""

    def __init__(
        self,
        model: RipeMambaSpike,
        grid: tuple[int, int],
        *,
        window_us: int,
        hop_us: int,
        time_steps: int,
        binary: bool,
        early: bool,
    ) -> None:
        super().__init__(window_us, time_steps)
        self.model, self.binary, self.early = model, binary, early
        self.silent = 0  # predictions that were due after a whole window of silence
        self._hop_bins = hop_us * time_steps // window_us  # from one prediction to the next
        usable = [edge_of(0, window_us, time_steps, bins) for bins in (max(1, self._hop_bins), self._hop_bins + 1)]
        if hop_us not in usable:
            raise InputError(
                "hop_us: expected a whole number of bins, as a causal network predicts when a bin closes, for example "
                f"{' or '.join(map(str, dict.fromkeys(usable)))}, got {hop_us}",
                field="hop_us",
            )
        self._hop_bins = max(1, self._hop_bins) + (hop_us != usable[0])
        self._device = next(model.parameters()).device
        self._state: State | None = None
        self._recent: deque[CausalStep] = deque(maxlen=time_steps)
        self._steps = self._skipped = 0
        self._last_event_us = 0  # the end of the last bin with events

    def begin(self, first_us: int) -> None:
        super().begin(first_us)
        self._reset_state()
        self._last_event_us, self._skipped = first_us, 0

    def leap(self, to_us: int) -> int | None:
        """Skip a silence after which nothing before it matters, by whole windows: bins keep their edges."""
        opened = edge_of(self._start, self.span_us, self.time_steps, self._index - 1)
        windows = (to_us - self._start) // self.span_us
        later = self._start + windows * self.span_us
        if not self._silent_at(opened) or later <= opened:
            return None
        self._skip(windows * self.time_steps - (self._index - 1))
        self._start, self._index = later, 0
        return later

    def process(self, part: ClosedBin) -> list[WindowResult]:
        """One step of the network, and the prediction if one is due."""
        began = perf_counter()
        if part.events:
            self._last_event_us, self._skipped = part.stop_us, 0
        elif self._silent_at(part.start_us):
            self._skip(1)
            return []
        counts = (part.counts > 0).astype(np.float32) if self.binary else part.counts
        x = torch.from_numpy(counts)[None, None].to(self._device, self.model.dtype)
        run = self.model.eval().run(x, state=self._state or {})
        self._state = run.state
        rates = tuple(run.rates[1::2].tolist())
        self._recent.append(CausalStep(part.start_us, part.events, run.logits[:, 0].cpu(), rates))
        self._steps += 1
        if self._steps % self._hop_bins or not (self.early or len(self._recent) == self.time_steps):
            return []
        if not any(step.events for step in self._recent):
            self.silent += 1
            return []
        count = len(self._recent)
        logits = torch.stack([step.logits for step in self._recent], 1)
        mean = tuple(sum(column) / count for column in zip(*(step.rates for step in self._recent), strict=True))
        assert run.attention is not None
        attention = run.attention[0, -1].float().cpu()
        seconds = perf_counter() - began
        return [WindowResult(self._recent[0].start_us, part.stop_us, count, logits, mean, attention, seconds)]

    def finish_pending(self) -> None:
        """Nothing to do: a causal network has no deferred work."""

    def _silent_at(self, time_us: int) -> bool:
        return time_us - self._last_event_us >= RESET_AFTER_WINDOWS * self.span_us

    def _skip(self, bins: int) -> None:
        """Skip the bins of a silence without running the network; skipped predictions are counted."""
        self._reset_state()
        before, self._skipped = self._skipped, self._skipped + bins
        self.silent += self._skipped // self._hop_bins - before // self._hop_bins

    def _reset_state(self) -> None:
        self._recent.clear()
        self._state, self._steps = None, 0
