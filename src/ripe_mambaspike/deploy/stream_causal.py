"""A causal network on a stream: one state that never ends, an answer for every hop, no windows.

Every bin moves the network on by one step. An answer is the mean of the logits over the last T steps, as many as a
training clip has; before so many have been seen it is an early one.
"""

from collections import deque
from time import perf_counter

import numpy as np
import torch

from ripe_mambaspike.deploy.stream_front import Seen
from ripe_mambaspike.deploy.stream_windows import Look
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.incremental import ClosedBin, RegularBins
from ripe_mambaspike.models.ripe import CausalState, RipeMambaSpike

FORGOTTEN = 64  # silent spans after which a stream begins anew rather than step through more of them


class CausalTrack(RegularBins):
    """Bins of `span_us / steps`; the network's state has one size however long the stream is."""

    def __init__(
        self, model: RipeMambaSpike, *, span_us: int, hop_us: int, steps: int, binary: bool, early: bool
    ) -> None:
        super().__init__(span_us, steps)
        self.model, self.binary, self.early = model, binary, early
        self.silent = 0  # answers that were due after a whole span of silence
        self.every = hop_us * steps // span_us  # bins from one answer to the next
        if self.every < 1 or (hop_us != -(-self.every * span_us // steps)):
            raise InputError(
                f"the hop is {hop_us} µs; a causal network answers when a bin closes, so a multiple of "
                f"{-(-span_us // steps)} µs is wanted"
            )
        self._state: CausalState | None = None
        self._recent: deque[tuple[int, int, torch.Tensor, tuple[float, ...]]] = deque(maxlen=steps)
        self._seen = 0
        self._last_stop: int | None = None

    def begin(self, first_us: int) -> None:
        super().begin(first_us)
        self._recent.clear()
        self._state, self._seen, self._last_stop = None, 0, None

    def leap(self, to_us: int) -> int | None:
        """Past a silence so long that nothing before it matters."""
        if self._last_stop is None or to_us - self._last_stop <= FORGOTTEN * self.span_us:
            return None
        self.begin(to_us)
        return to_us

    def closed(self, part: ClosedBin) -> list[Look]:
        began = perf_counter()
        counts = (part.counts > 0).astype(np.float32) if self.binary else part.counts
        device = next(self.model.parameters()).device
        x = torch.from_numpy(counts)[None, None].to(device, self.model.dtype)
        run = self.model.run_causal(x, self._state)
        self._state = run.state
        rates = tuple(float(stage.spikes.float().mean()) for stage in run.front.stages)
        self._recent.append((part.start_us, part.events, run.logits[:, 0].cpu(), rates))
        self._seen += 1
        self._last_stop = part.stop_us
        if self._seen % self.every or not (self.early or len(self._recent) == self.steps):
            return []
        if not any(events for _, events, _, _ in self._recent):
            self.silent += 1
            return []
        logits = torch.stack([one for _, _, one, _ in self._recent], 1)
        mean = tuple(sum(column) / len(self._recent) for column in zip(*(one[3] for one in self._recent), strict=True))
        attention = run.front.attention[0, -1].float().mean(0).cpu()
        start = self._recent[0][0]
        return [Look(start, part.stop_us, len(self._recent), Seen(logits, mean, attention), perf_counter() - began)]

    def settle(self) -> None:
        """Nothing is left for later here."""
