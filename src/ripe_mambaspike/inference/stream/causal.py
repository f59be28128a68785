"""A causal network on a stream: one state of constant size, a prediction every hop, no windows.

Every bin is one step of the network. A prediction is the mean of the logits over the last T steps, as many as a
training clip has; before so many steps have been seen it is an early one.
"""

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.incremental import ClosedBin, RegularBins, edge_of
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.stream.processor import StreamProcessor, WindowResult
from ripe_mambaspike.models.base import Output
from ripe_mambaspike.models.cuda_graphs import RecordedUpdates
from ripe_mambaspike.models.fused import prepared_plan, run_fused, steps_covered
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.forward_mode import HARD
from ripe_mambaspike.nn.state import State

RESET_AFTER_WINDOWS = 4  # of silence, after which the state has decayed and is reset


class CausalStep(NamedTuple):
    """One of the last T steps."""

    start_us: int
    events: int
    logits: Tensor  # [1, classes]
    rates: tuple[float, ...]


class RecordedContinuation:
    """A step of a causal network, by a CUDA graph that updates the state in place.

    The first step has no state and is not captured; its state is copied to where the graph reads it. What a call
    returns is overwritten by the next one.
    """

    def __init__(self, run: Callable[[Tensor, State], Output]) -> None:
        self._run = run
        self._state: State = {}
        self._continue: RecordedUpdates[Output] | None = None

    @torch.inference_mode()
    def __call__(self, x: Tensor, state: State) -> Output:
        if not state or self._continue is None:
            out = self._run(x, state)
            assert out.state is not None
            if self._continue is None:
                self._state = {name: value.clone() for name, value in out.state.items()}
                self._continue = RecordedUpdates(self._update, list(self._state.values()))
            else:
                self._keep(out.state)
            return out._replace(state=self._state)
        return self._continue(x)

    def _update(self, x: Tensor) -> Output:
        out = self._run(x, self._state)
        assert out.state is not None
        self._keep(out.state)
        return out._replace(state=self._state)

    def _keep(self, state: State) -> None:
        for name, value in self._state.items():
            value.copy_(state[name])


class CausalStream(RegularBins, StreamProcessor):
    """Bins of `window_us / time_steps`; the network's state has one size however long the stream is.

    A prediction that is due after a whole window of silence counts as silent.
    """

    model: RipeMambaSpike

    def __init__(self, classifier: Classifier, window_us: int, hop_us: int, early: bool) -> None:
        StreamProcessor.__init__(self, classifier, window_us, hop_us, early)
        RegularBins.__init__(self, window_us, classifier.time_steps)
        time_steps = self.time_steps
        self._hop_bins = hop_us * time_steps // window_us  # from one prediction to the next
        usable = [edge_of(0, window_us, time_steps, bins) for bins in (max(1, self._hop_bins), self._hop_bins + 1)]
        if hop_us not in usable:
            examples = " or ".join(map(str, dict.fromkeys(usable)))
            raise InputError.expected(
                "hop_us",
                f"a whole number of bins, as a causal network predicts when a bin closes, for example {examples}",
                hop_us,
            )
        self._hop_bins = max(1, self._hop_bins) + (hop_us != usable[0])
        self._device = classifier.device
        self._run = self._prepare()
        self._state: State = {}
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
        x = self.as_input(part.counts)[None, None].to(self._device, self.model.dtype)
        run = self._run(x, self._state)
        self._state = run.state or {}
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

    @torch.no_grad()
    def _prepare(self) -> Callable[[Tensor, State], Output]:
        """One step of the network; over the fused operators where they cover it, with the weights as they are now."""
        example = torch.zeros((1, 1, 2, *self.grid), dtype=self.model.dtype, device=self._device)
        if not steps_covered(self.model, example, HARD):
            return lambda x, state: self.model.run(x, state=state)
        plan = prepared_plan(self.model, example)
        if example.is_cuda:
            return RecordedContinuation(lambda x, state: run_fused(plan, x, state=state))
        return torch.inference_mode()(lambda x, state: run_fused(plan, x, state=state))

    def _silent_at(self, time_us: int) -> bool:
        return time_us - self._last_event_us >= RESET_AFTER_WINDOWS * self.span_us

    def _skip(self, bins: int) -> None:
        """Skip the bins of a silence without running the network; skipped predictions are counted."""
        self._reset_state()
        before, self._skipped = self._skipped, self._skipped + bins
        self.silent += self._skipped // self._hop_bins - before // self._hop_bins

    def _reset_state(self) -> None:
        self._recent.clear()
        self._state, self._steps = {}, 0
