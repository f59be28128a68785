"""Overlapping windows: one starts every hop, each with bins of its own; events in bins they share are counted once.

Time is cut at every edge of every window. Events between two cuts are counted once; a window's bin is the sum of the
parts between its edges, which is a single part when the hop is a multiple of the bin's width.
"""

from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.events.incremental import ClosedBin, edge_of
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.stream.processor import StreamProcessor, WindowResult
from ripe_mambaspike.inference.stream.window_batch import make_batch


@dataclass(eq=False)
class Window:
    """[start, stop) in `time_steps` bins: how many have closed, how many the network has seen, and the open one."""

    start_us: int
    stop_us: int
    time_steps: int
    row: int  # in the network's batch
    bins: int = 0  # closed
    step: int = 0  # bins that went through the network
    events: int = 0
    _counts: NDArray[np.float32] | None = field(default=None, repr=False)  # of the open bin

    @property
    def finished(self) -> bool:
        return self.step == self.time_steps

    def edge(self) -> int:
        """Where the open bin ends."""
        return edge_of(self.start_us, self.stop_us - self.start_us, self.time_steps, self.bins + 1)

    def add(self, part: ClosedBin) -> NDArray[np.float32] | None:
        """The counts of the open bin, if this part closes it."""
        self.events += part.events
        counts = part.counts if self._counts is None else self._counts + part.counts
        if part.stop_us < self.edge():
            self._counts = counts
            return None
        self._counts = None
        self.bins += 1
        return counts


class PendingStep(NamedTuple):
    """A window with one more bin for the network."""

    window: Window
    counts: Tensor


class SlidingWindows(StreamProcessor):
    """The timeline of overlapping windows, and their way through the network.

    Windows that get a prediction are computed first; the steps of the others are left for `finish_pending`, which
    every later call starts with, so that no prediction waits for them.
    """

    def __init__(self, classifier: Classifier, window_us: int, hop_us: int, early: bool) -> None:
        super().__init__(classifier, window_us, hop_us, early)
        rows = -(-window_us // hop_us)  # windows that are open at once
        self._network = make_batch(self.model, rows, self.grid, self.time_steps)
        self._rows, self._next_row = rows, 0
        self._open: list[Window] = []  # the oldest first
        self._next_start = 0
        self._pending: list[PendingStep] = []

    def begin(self, first_us: int) -> None:
        self._pending = []
        self._open = []
        self._next_start = first_us
        self._open_window(first_us)

    def next_edge(self) -> int:
        return min([self._next_start, *(window.edge() for window in self._open)])

    def leap(self, to_us: int) -> int | None:
        """Skip a silence that is longer than a window, if no open window has seen an event."""
        ahead = to_us - self._next_start
        ended = (ahead - self.window_us) // self.hop_us + 1  # windows that end before anything happens
        skipped = min(ended, ahead // self.hop_us)  # the first one not skipped starts by then
        if skipped < 1 or any(window.events for window in self._open):
            return None
        first = self._next_start + skipped * self.hop_us
        self.silent += len(self._open) + skipped
        self.begin(first)
        return first

    def process(self, part: ClosedBin) -> list[WindowResult]:
        """Add the closed bin to every window; returns the results of the windows that are due, the oldest first."""
        self.finish_pending()
        began = perf_counter()
        shared = self.as_input(part.counts)
        due: list[PendingStep] = []
        for window in self._open:
            counts = window.add(part)
            if counts is not None:
                due.append(PendingStep(window, shared if counts is part.counts else self.as_input(counts)))
        first = len(due) if self.early else min(2, len(due))  # the oldest; two cost hardly more than one
        if not due or not (self.early or due[0].window.bins == self.time_steps):
            first = 0
        self._advance(due[:first])
        self._pending = due[first:]
        results = [self._result(one.window, began) for one in due[:first] if self._has_prediction(one.window)]
        ended = [window for window in self._open if window.finished]
        self._open = [window for window in self._open if not window.finished]
        self.silent += sum(not window.events for window in ended)
        self._open_window(part.stop_us)
        return results

    def finish_pending(self) -> None:
        """Run the deferred steps."""
        pending, self._pending = self._pending, []
        self._advance(pending)

    def _open_window(self, now_us: int) -> None:
        if now_us == self._next_start:
            window = Window(now_us, now_us + self.window_us, self.time_steps, self._next_row)
            self._next_row = (self._next_row + 1) % self._rows  # windows end in the order in which they start
            self._network.clear(window.row)
            self._open.append(window)
            self._next_start += self.hop_us

    def _has_prediction(self, window: Window) -> bool:
        return window.events > 0 and (self.early or window.finished)

    def _advance(self, due: list[PendingStep]) -> None:
        if due:
            windows = [one.window for one in due]
            steps = [window.step for window in windows]
            self._network.advance([window.row for window in windows], steps, [one.counts for one in due])
            for window in windows:
                window.step += 1

    def _result(self, window: Window, began: float) -> WindowResult:
        logits, rates, attention = self._network.output(window.row, window.step)
        seconds = perf_counter() - began
        return WindowResult(window.start_us, window.stop_us, window.step, logits, rates, attention, seconds)
