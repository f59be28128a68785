"""Windows in flight: one begins every hop, each has its own bins, and bins that windows share are counted once.

Time is cut at every edge of every window. Between two cuts events are counted once; a window's bin is the sum of the
parts between its edges, which is one part alone when the hop is a multiple of the bin's width.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.events.incremental import ClosedBin, edge_of
from ripe_mambaspike.inference.stream.front import WindowFront, WindowOutput


class PendingStep(NamedTuple):
    """A window that has one more bin to go through the network."""

    window: "Window"
    counts: Tensor


class WindowResult(NamedTuple):
    """A window whose steps so far are to be answered for."""

    start_us: int
    stop_us: int  # the end of the window, whatever has been seen of it
    step: int
    seen: WindowOutput
    seconds: float  # since the bin closed


@dataclass(eq=False)
class Window:
    """[start, start + span) in `steps` bins: how many have closed, how many the network has seen, and the open one."""

    start_us: int
    span_us: int
    steps: int
    slot: int
    bins: int = 0  # closed
    done: int = 0  # gone through the network
    events: int = 0
    _parts: NDArray[np.float32] | None = field(default=None, repr=False)

    @property
    def stop_us(self) -> int:
        return self.start_us + self.span_us

    @property
    def finished(self) -> bool:
        return self.done == self.steps

    def edge(self) -> int:
        """Where the open bin ends."""
        return edge_of(self.start_us, self.span_us, self.steps, self.bins + 1)

    def take(self, part: ClosedBin) -> NDArray[np.float32] | None:
        """The counts of the open bin if this part ends it."""
        self.events += part.events
        counts = part.counts if self._parts is None else self._parts + part.counts
        if part.stop_us < self.edge():
            self._parts = counts
            return None
        self._parts = None
        self.bins += 1
        return counts


class SlidingWindows:
    """The timeline of overlapping windows, and their way through the network.

    Whatever answers is computed first; the other windows' steps are left for `settle`, which every later call begins
    with, so that an answer does not wait for them.
    """

    def __init__(
        self,
        make_front: Callable[[int], WindowFront],
        *,
        span_us: int,
        hop_us: int,
        steps: int,
        binary: bool,
        early: bool,
    ) -> None:
        self.span_us, self.hop_us, self.steps, self.binary, self.early = span_us, hop_us, steps, binary, early
        self.silent = 0  # windows that ended without a single event; they get no answer
        slots = -(-span_us // hop_us)
        self._front = make_front(slots)
        self._free = list(range(slots))
        self._flying: list[Window] = []  # the oldest first
        self._next_start = 0
        self._owed: list[PendingStep] = []

    def begin(self, first_us: int) -> None:
        self._owed = []
        self._free += [window.slot for window in self._flying]
        self._flying = []
        self._next_start = first_us
        self._open(first_us)

    def next_edge(self) -> int:
        return min([self._next_start, *(window.edge() for window in self._flying)])

    def leap(self, to_us: int) -> int | None:
        """Past a silence that is longer than a window, no window in flight having seen an event."""
        ahead = to_us - self._next_start
        over = (ahead - self.span_us) // self.hop_us + 1  # windows that end before anything happens
        skipped = min(over, ahead // self.hop_us)  # but the one skipped to begins by then
        if skipped < 1 or any(window.events for window in self._flying):
            return None
        first = self._next_start + skipped * self.hop_us
        self.silent += len(self._flying) + skipped
        self.begin(first)
        return first

    def closed(self, part: ClosedBin) -> list[WindowResult]:
        """Hand every window its part; the windows that are to be answered for, the one that ended first."""
        self.settle()
        began = perf_counter()
        whole = self._input(part.counts)
        due: list[PendingStep] = []
        for window in self._flying:
            counts = window.take(part)
            if counts is not None:
                due.append(PendingStep(window, whole if counts is part.counts else self._input(counts)))
        answering = len(due) if self.early else min(2, len(due))  # the oldest; two cost hardly more than one
        if not due or not (self.early or due[0].window.bins == self.steps):
            answering = 0
        self._advance(due[:answering])
        self._owed = due[answering:]
        looks = [self._look(one.window, began) for one in due[:answering] if self._speaks(one.window)]
        self._flying, ended = _apart(self._flying)
        self._free += [window.slot for window in ended]
        self.silent += sum(not window.events for window in ended)
        self._open(part.stop_us)
        return looks

    def settle(self) -> None:
        """Do what was left for later."""
        owed, self._owed = self._owed, []
        self._advance(owed)

    def _open(self, now_us: int) -> None:
        if now_us == self._next_start:
            window = Window(now_us, self.span_us, self.steps, self._free.pop())
            self._front.clear(window.slot)
            self._flying.append(window)
            self._next_start += self.hop_us

    def _speaks(self, window: Window) -> bool:
        return window.events > 0 and (self.early or window.finished)

    def _advance(self, due: list[PendingStep]) -> None:
        if due:
            windows = [one.window for one in due]
            steps = [window.done for window in windows]
            self._front.advance([window.slot for window in windows], steps, [one.counts for one in due])
            for window in windows:
                window.done += 1

    def _look(self, window: Window, began: float) -> WindowResult:
        seen = self._front.look(window.slot, window.done)
        return WindowResult(window.start_us, window.stop_us, window.done, seen, perf_counter() - began)

    def _input(self, counts: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy((counts > 0).astype(np.float32) if self.binary else counts)


def _apart(windows: list[Window]) -> tuple[list[Window], list[Window]]:
    """Those still in flight, and those that have ended."""
    return [one for one in windows if not one.finished], [one for one in windows if one.finished]
