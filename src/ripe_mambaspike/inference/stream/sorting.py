"""Events of a live source by time: sorted within a tolerance, strays left out, a new clock noticed.

An event that comes later than the tolerance is handed on at once: whoever counts may still have use for it. A time far
from those before it is a stray, unless the next packet agrees with it: then the source has begun to count anew, and so
does the stream.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.source import empty_events


class SortedEvents(NamedTuple):
    """Events in order; `anew` when they begin a clock of their own."""

    events: Events
    restarted: bool = False


class EventSorter:
    """Holds the latest `tolerance_us` of events back; a leap of more than `leap_us` is not believed at once."""

    def __init__(self, tolerance_us: int = 0, max_jump_us: int | None = None) -> None:
        if tolerance_us < 0:
            raise InputError(f"the tolerance is {tolerance_us} µs; 0 or more is wanted")
        self.tolerance_us, self.max_jump_us = tolerance_us, max_jump_us
        self.stray = 0  # events of times that nothing else agreed with
        self.newest: int | None = None
        self._held = empty_events()
        self._suspect = empty_events()

    def push(self, events: Events, waited_us: int = 0) -> list[SortedEvents]:
        """What may be handed on now that these have come, so long after the packet before them."""
        out: list[SortedEvents] = []
        near = self._near(events, waited_us)
        if len(events) and not near.any():
            if len(self._suspect) and _agree(self._suspect, events, self.max_jump_us):
                out.append(SortedEvents(self.flush()))
                events, self._suspect = np.concatenate((self._suspect, events)), empty_events()
                self.newest = None
                return [*out, SortedEvents(self._release(events), restarted=True)]
            self.stray += len(self._suspect)
            self._suspect = events.copy()
            return out
        if len(events):
            self.stray += len(self._suspect) + int(len(events) - near.sum())
            self._suspect = empty_events()
        return [SortedEvents(self._release(events if near.all() else events[near]))]

    def flush(self) -> Events:
        """All that is held back."""
        held, self._held = self._held, empty_events()
        return held

    def _near(self, events: Events, waited_us: int) -> NDArray[np.bool_]:
        if self.max_jump_us is None or not len(events):
            return np.ones(len(events), bool)
        times = events["t"]
        usual = int(np.median(times)) if self.newest is None else self.newest
        return (times >= usual - self.max_jump_us) & (times <= usual + self.max_jump_us + waited_us)

    def _release(self, events: Events) -> Events:
        joined = np.concatenate((self._held, events)) if len(self._held) else events
        if not len(joined):
            return joined
        times = joined["t"]
        if (times[1:] < times[:-1]).any():  # most packets are in order
            joined = joined[np.argsort(times, kind="stable")]
            times = joined["t"]
        self.newest = int(times[-1]) if self.newest is None else max(self.newest, int(times[-1]))
        ready = len(joined)
        if self.tolerance_us:
            ready = int(np.searchsorted(times, self.newest - self.tolerance_us, side="right"))
        self._held = joined[ready:].copy()
        return joined[:ready]


def _agree(first: Events, second: Events, max_jump_us: int | None) -> bool:
    """Whether two packets are of one clock."""
    apart = abs(int(np.median(first["t"])) - int(np.median(second["t"])))
    return max_jump_us is not None and apart <= max_jump_us
