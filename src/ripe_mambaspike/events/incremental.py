"""Binning while the events arrive: packets of any size → closed bins, each equal to `bin_events` of that time range.

A bin closes when an event at or beyond its end comes, or when the caller says that time has passed. Which bins there
are is the caller's: a timeline names the next edge each time one has been reached.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.binning import CHUNK_EVENTS, _cells, as_grid
from ripe_mambaspike.events.recording import LIMITS, Events, Recording, check_inside

KINDS = {"x": "iu", "y": "iu", "t": "iu", "p": "iub"}  # of numpy's types


@dataclass(frozen=True)
class ClosedBin:
    """[start, stop) in µs, how many events fell into it, and where."""

    start_us: int
    stop_us: int
    events: int
    counts: NDArray[np.float32]  # [2, H, W], polarity 0 (OFF) first


class Timeline(Protocol):
    """Where bins end. It is called after every bin, so it may depend on the bins before."""

    def begin(self, first_us: int) -> None:
        """The time of the first event: the first bin begins there."""

    def next_edge(self) -> int:
        """Where the open bin ends."""

    def leap(self, to_us: int) -> int | None:
        """Nothing happens before `to_us`: a later beginning for the open bin, None to close bins one by one."""


class RegularBins:
    """Endless bins, `steps` of them in every `span_us`, rounded as `bin_events` divides such a span."""

    def __init__(self, span_us: int, steps: int) -> None:
        if not 1 <= steps <= span_us:
            raise InputError.expected("steps", f"from 1 to the span of {span_us} µs", steps)
        self.span_us, self.steps = span_us, steps
        self._start = self._index = 0

    def begin(self, first_us: int) -> None:
        self._start, self._index = first_us, 0

    def next_edge(self) -> int:
        self._index += 1
        return edge_of(self._start, self.span_us, self.steps, self._index)

    def leap(self, to_us: int) -> int | None:
        return None


def edge_of(start_us: int, span_us: int, steps: int, index: int) -> int:
    """Where step `index` of [start, start + span) begins, as `bin_events` divides it; it goes on beyond the span."""
    return start_us + -(-index * span_us // steps)


def check_types(events: object) -> None:
    """Raise unless these are events: an array whose fields hold whole numbers."""
    if isinstance(events, Recording):
        raise InputError.expected("events", "the .events of a Recording", "the Recording")
    if not isinstance(events, np.ndarray):
        raise InputError.expected("events", "an array with the fields x, y, t, p", type(events).__name__)
    for name, (kind, *_) in (events.dtype.fields or {}).items():
        if kind.kind not in KINDS.get(name, kind.kind):
            raise InputError.expected(name, "integers", str(kind))


def check_times(events: Events) -> None:
    """Raise unless the times, which are in order, fit into 62 bits."""
    (low, high), first, last = LIMITS["t"], int(events["t"][0]), int(events["t"][-1])
    if first < low or last > high:
        raise InputError.expected("t", f"values from {low} to {high}", f"{first} to {last}")


class CellCounter:
    """Events counted on a grid, some at a time."""

    def __init__(self, sensor_size: tuple[int, int], grid: int | tuple[int, int] | None = None) -> None:
        self.grid = as_grid(grid, sensor_size)
        height, width = self.grid
        self.events = 0
        self._columns, self._rows = _cells(sensor_size[0], width), _cells(sensor_size[1], height) * width
        self._plane = height * width
        self._totals = np.zeros(2 * self._plane, np.int64)
        self._waiting: list[NDArray[np.int64]] = []  # many small packets are counted in one go
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
        """The counts so far [2, H, W]; counting begins anew."""
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
    """Packets in, closed bins out. `late` counts the events that came after their bin had closed; they are left out."""

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
        """The bins these events close; take them all, since the rest of the packet waits for that."""
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
        """The bins that end by then; nothing where no event has come yet."""
        if self._start is not None:
            yield from self._close_until(to_us)

    def begin(self, first_us: int) -> None:
        """Open the first bin at a time of the caller's choosing, before any event."""
        if self._start is None:
            self._begin(first_us)

    def restart(self) -> None:
        """Forget the open bin; the next event begins anew."""
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
