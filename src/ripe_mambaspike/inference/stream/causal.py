"""A causal network on a stream: one state that never ends, an answer for every hop, no windows.

Every bin moves the network on by one step. An answer is the mean of the logits over the last T steps, as many as a
training clip has; before so many have been seen it is an early one.
"""

from collections import deque
from time import perf_counter

import numpy as np
import torch

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.incremental import ClosedBin, RegularBins, edge_of
from ripe_mambaspike.inference.stream.front import WindowOutput
from ripe_mambaspike.inference.stream.windows import WindowResult
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.state import State

RESET_AFTER_SPANS = 4  # silent spans after which the network begins anew and waits; what came before has faded


class CausalStream(RegularBins):
    """Bins of `span_us / steps`; the network's state has one size however long the stream is."""

    def __init__(
        self, model: RipeMambaSpike, *, span_us: int, hop_us: int, steps: int, binary: bool, early: bool
    ) -> None:
        super().__init__(span_us, steps)
        self.model, self.binary, self.early = model, binary, early
        self.silent = 0  # answers that were due after a whole span of silence
        self.every = hop_us * steps // span_us  # bins from one answer to the next
        check_sensor = [edge_of(0, span_us, steps, bins) for bins in (max(1, self.every), self.every + 1)]
        if hop_us not in check_sensor:
            raise InputError(
                f"the hop is {hop_us} µs; a causal network answers when a bin closes, so a number of bins is wanted, "
                f"such as {' or '.join(map(str, dict.fromkeys(check_sensor)))} µs"
            )
        self.every = max(1, self.every) + (hop_us != check_sensor[0])
        self._state: State | None = None
        self._recent: deque[tuple[int, int, torch.Tensor, tuple[float, ...]]] = deque(maxlen=steps)
        self._seen = self._skipped = 0
        self._heard = 0  # when the last bin with events ended

    def begin(self, first_us: int) -> None:
        super().begin(first_us)
        self._forget()
        self._heard, self._skipped = first_us, 0

    def leap(self, to_us: int) -> int | None:
        """Past a silence after which nothing before it matters, by whole spans: bins keep their edges."""
        opened = edge_of(self._start, self.span_us, self.steps, self._index - 1)
        spans = (to_us - self._start) // self.span_us
        later = self._start + spans * self.span_us
        if not self._silent_at(opened) or later <= opened:
            return None
        self._skip(spans * self.steps - (self._index - 1))
        self._start, self._index = later, 0
        return later

    def _silent_at(self, time_us: int) -> bool:
        return time_us - self._heard >= RESET_AFTER_SPANS * self.span_us

    def _skip(self, bins: int) -> None:
        """Bins of a silence that is not stepped through; answers that were due are counted."""
        self._forget()
        before, self._skipped = self._skipped, self._skipped + bins
        self.silent += self._skipped // self.every - before // self.every

    def _forget(self) -> None:
        self._recent.clear()
        self._state, self._seen = None, 0

    def closed(self, part: ClosedBin) -> list[WindowResult]:
        began = perf_counter()
        if part.events:
            self._heard, self._skipped = part.stop_us, 0
        elif self._silent_at(part.start_us):
            self._skip(1)
            return []
        counts = (part.counts > 0).astype(np.float32) if self.binary else part.counts
        device = next(self.model.parameters()).device
        x = torch.from_numpy(counts)[None, None].to(device, self.model.dtype)
        run = self.model.eval().run(x, state=self._state or {})
        self._state = run.state
        rates = tuple(run.rates[1::2].tolist())
        self._recent.append((part.start_us, part.events, run.logits[:, 0].cpu(), rates))
        self._seen += 1
        if self._seen % self.every or not (self.early or len(self._recent) == self.steps):
            return []
        if not any(events for _, events, _, _ in self._recent):
            self.silent += 1
            return []
        logits = torch.stack([one for _, _, one, _ in self._recent], 1)
        mean = tuple(sum(column) / len(self._recent) for column in zip(*(one[3] for one in self._recent), strict=True))
        attention = run.attention[0, -1].float().cpu()
        start = self._recent[0][0]
        return [
            WindowResult(
                start, part.stop_us, len(self._recent), WindowOutput(logits, mean, attention), perf_counter() - began
            )
        ]

    def settle(self) -> None:
        """Nothing is left for later here."""
