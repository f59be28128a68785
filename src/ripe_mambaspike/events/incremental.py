"""Binning while the events arrive: packets of any size → closed bins, each equal to `bin_events` of that time range.

A bin closes when an event at or after its end arrives, or when the caller advances the time. The caller chooses the
bins: a `Timeline` gives the next edge each time one is reached.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.binning import CHUNK_EVENTS, as_grid, cell_table
from ripe_mambaspike.events.recording import LIMITS, Events, Recording, check_inside

KINDS = {"x": "iu", "y": "iu", "t": "iu", "p": "iub"}  # of numpy's types


@dataclass(frozen=True)
class ClosedBin:
    """A bin [start, stop) in µs, its number of events, and their counts."""

    start_us: int
    stop_us: int
    events: int
    counts: NDArray[np.float32]  # [2, H, W], polarity 0 (OFF) first


class Timeline(Protocol):
    """Decides where bins end. It is called after every bin, so it may depend on earlier bins."""

    def begin(self, first_us: int) -> None:
        """The time of the first event: the first bin begins there."""

    def next_edge(self) -> int:
        """Where the open bin ends."""

    def leap(self, to_us: int) -> int | None:
        """No event comes before `to_us`: returns a later start for the open bin, or None to close bins one by one."""


class RegularBins:
    """Endless bins, `time_steps` of them in every `span_us`, rounded as `bin_events` divides such a span."""

    def __init__(self, span_us: int, time_steps: int) -> None:
        if not 1 <= time_steps <= span_us:
            raise InputError.expected("time_steps", f"from 1 to the span of {span_us} µs", time_steps)
        self.span_us, self.time_steps = span_us, time_steps
        self._start = self._index = 0

    def begin(self, first_us: int) -> None:
        self._start, self._index = first_us, 0

    def next_edge(self) -> int:
        self._index += 1
        return edge_of(self._start, self.span_us, self.time_steps, self._index)

    def leap(self, to_us: int) -> int | None:
        return None


def edge_of(start_us: int, span_us: int, time_steps: int, index: int) -> int:
    """The start of step `index` of [start, start + span), as `bin_events` divides it; also beyond the span."""
    return start_us + -(-index * span_us // time_steps)


def check_types(events: object) -> None:
    """Raise unless this is an event array with integer fields."""
    if isinstance(events, Recording):
        raise InputError.expected("events", "the .events of a Recording", "the Recording")
    if not isinstance(events, np.ndarray):
        raise InputError.expected("events", "an array with the fields x, y, t, p", type(events).__name__)
    for name, (kind, *_) in (events.dtype.fields or {}).items():
        if kind.kind not in KINDS.get(name, kind.kind):
            raise InputError.expected(name, "integers", str(kind))


def check_times(events: Events) -> None:
    """Raise unless the (ordered) times fit into 62 bits."""
    (low, high), first, last = LIMITS["t"], int(events["t"][0]), int(events["t"][-1])
    if first < low or last > high:
        raise InputError.expected("t", f"values from {low} to {high}", f"{first} to {last}")


class CellCounter:
    """Counts events on a grid, packet by packet."""

    def __init__(self, sensor_size: tuple[int, int], grid: int | tuple[int, int] | None = None) -> None:
        self.grid = as_grid(grid, sensor_size)
        self.events = 0
        self._columns, self._rows = cell_table(sensor_size, self.grid)
        self._plane = self.grid[0] * self.grid[1]
        self._totals = np.zeros(2 * self._plane, np.int64)
        self._waiting: list[NDArray[np.int64]] = []  # many small packets are counted together
        self._held = 0

    def add(self, events: Events) -> None:
        for first in range(0, len(events), CHUNK_EVENTS):
            part = events[first : first + CHUNK_EVENTS]
            index = self._rows[part["y"]]
            index += self._columns[part["x"]]
            index += part["p"].astype(np.int64) * self._plane
            self._waiting.append(index)
            self._held += len(part)
            if self._held >= CHUNK_EVENTS:
                self._count()
        self.events += len(events)

    def take(self) -> NDArray[np.float32]:
        """Return the counts so far [2, H, W] and reset them."""
        self._count()
        counts = self._totals.astype(np.float32).reshape(2, *self.grid)
        self._totals[:] = 0
        self.events = 0
        return counts

    def _count(self) -> None:
        if self._waiting:
            joined = np.concatenate(self._waiting) if len(self._waiting) > 1 else self._waiting[0]
            self._totals += np.bincount(joined, minlength=len(self._totals))
            self._waiting, self._held = [], 0


class IncrementalBinner:
    """Packets in, closed bins out. Events that arrive after their bin has closed are dropped and counted in `late`."""

    def __init__(
        self, sensor_size: tuple[int, int], timeline: Timeline, grid: int | tuple[int, int] | None = None
    ) -> None:
        Recording(np.empty(0, [(name, "i8") for name in "xytp"]), sensor_size)  # which checks the size
        self.sensor_size = sensor_size
        self.late = 0
        self._timeline = timeline
        self._counter = CellCounter(sensor_size, grid)
        self._start: int | None = None  # of the open bin
        self._edge = 0  # its end

    def push(self, events: Events) -> Iterator[ClosedBin]:
        """Yield the bins that these events close. Exhaust the iterator: the rest of the packet is added as it runs."""
        check_types(events)
        recording = Recording(events, self.sensor_size)
        check_inside(recording)
        events = recording.ordered().events
        if not len(events):
            return
        check_times(events)
        if self._start is None:
            self._begin(int(events["t"][0]))
        assert self._start is not None
        past = int(np.searchsorted(events["t"], self._start))
        self.late += past
        events = events[past:]
        while len(events):
            here = int(np.searchsorted(events["t"], self._edge))
            self._counter.add(events[:here])
            events = events[here:]
            if len(events):
                yield from self._close_until(int(events["t"][0]))

    def advance(self, to_us: int) -> Iterator[ClosedBin]:
        """Yield the bins that end by this time; none before the first event."""
        if self._start is not None:
            yield from self._close_until(to_us)

    def begin(self, first_us: int) -> None:
        """Open the first bin at the given time, before any event."""
        if self._start is None:
            self._begin(first_us)

    def restart(self) -> None:
        """Discard the open bin; the next event starts a new one."""
        self._counter.take()
        self._start = None

    def _begin(self, first_us: int) -> None:
        self._timeline.begin(first_us)
        self._start, self._edge = first_us, self._timeline.next_edge()

    def _close_until(self, to_us: int) -> Iterator[ClosedBin]:
        while self._edge <= to_us:
            assert self._start is not None
            if not self._counter.events and (later := self._timeline.leap(to_us)) is not None:
                self._start, self._edge = later, self._timeline.next_edge()
                continue
            start, stop, count = self._start, self._edge, self._counter.events
            counts = self._counter.take()
            self._start = stop
            yield ClosedBin(start, stop, count, counts)
            self._edge = self._timeline.next_edge()
