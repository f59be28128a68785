"""Buffering between the source and the network: a bounded queue, an event rate limit, and sorting by time.

Dropped events are counted.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.source import empty_events


class QueuedPacket(NamedTuple):
    """Events, and when they arrived on the process's own clock (seconds)."""

    events: Events
    arrived: float


class EventQueue:
    """A queue of at most `capacity` events (or one packet). When full it drops the oldest packets, or blocks."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InputError.expected("queue_events", "at least 1", capacity)
        self.capacity = capacity
        self.dropped = 0  # events
        self._packets: deque[QueuedPacket] = deque()
        self._events = 0
        self._ended = False
        self._changed = Condition()

    def put(self, packet: QueuedPacket, wait: bool = False) -> bool:
        """Add a packet; with `wait` nothing is dropped. False once the queue has been ended."""
        with self._changed:
            while wait and self._packets and self._events + len(packet.events) > self.capacity and not self._ended:
                self._changed.wait()
            if self._ended:
                return False
            self._packets.append(packet)
            self._events += len(packet.events)
            while self._events > self.capacity and len(self._packets) > 1:
                oldest = self._packets.popleft()
                self._events -= len(oldest.events)
                self.dropped += len(oldest.events)
            self._changed.notify_all()
            return True

    def get(self, timeout: float) -> QueuedPacket | None:
        """The oldest packet; None after the timeout or at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._packets or self._ended, timeout)
            if not self._packets:
                return None
            packet = self._packets.popleft()
            self._events -= len(packet.events)
            self._changed.notify_all()
            return packet

    @property
    def waiting(self) -> int:
        """Events in the queue."""
        with self._changed:
            return self._events

    def end(self) -> None:
        """Close the queue for new packets; queued ones can still be taken."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def drained(self) -> bool:
        """Whether the queue has been closed and is empty."""
        with self._changed:
            return self._ended and not self._packets


class RateLimiter:
    """Lets at most `rate` events per second pass, with bursts of one second; a packet's first events pass first."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not 1 <= rate < math.inf:
            raise InputError.expected("max_rate", "at least 1 event/s", rate)
        self.rate, self.dropped = rate, 0
        self._clock, self._credit, self._last = clock, rate, clock()

    def limit(self, events: Events) -> Events:
        now = self._clock()
        self._credit = min(self.rate, self._credit + (now - self._last) * self.rate)
        self._last = now
        allowed = min(len(events), int(self._credit))
        self._credit -= allowed
        self.dropped += len(events) - allowed
        return events[:allowed]


class SortedEvents(NamedTuple):
    """Sorted events; `restarted` if the source's clock restarted with them."""

    events: Events
    restarted: bool = False


class EventSorter:
    """Sorts events by time within a tolerance, drops strays, and detects restarts of the source's clock.

    The latest `tolerance_us` of events are held back; an event that comes later than that is passed on at once, since
    its bin may still be open. A time more than `max_jump_us` away from those before it is a stray, unless the next
    packet agrees with it: then the source's clock has restarted.
    """

    def __init__(self, tolerance_us: int = 0, max_jump_us: int | None = None) -> None:
        if tolerance_us < 0:
            raise InputError.expected("tolerance_us", "at least 0", tolerance_us)
        self.tolerance_us, self.max_jump_us = tolerance_us, max_jump_us
        self.stray = 0  # events whose time no other packet agreed with
        self.newest: int | None = None
        self._held = empty_events()
        self._suspect = empty_events()

    def push(self, events: Events, waited_us: int = 0) -> list[SortedEvents]:
        """Add events that arrived `waited_us` after the previous packet; returns those that can be passed on."""
        near = self._is_plausible(events, waited_us)
        if len(events) and not near.any():
            if len(self._suspect) and _same_clock(self._suspect, events, self.max_jump_us):
                before = SortedEvents(self.flush())
                events, self._suspect = np.concatenate((self._suspect, events)), empty_events()
                self.newest = None
                return [before, SortedEvents(self._release(events), restarted=True)]
            self.stray += len(self._suspect)
            self._suspect = events.copy()
            return []
        if len(events):
            self.stray += len(self._suspect) + int(len(events) - near.sum())
            self._suspect = empty_events()
        return [SortedEvents(self._release(events if near.all() else events[near]))]

    def flush(self) -> Events:
        """All events that are held back."""
        held, self._held = self._held, empty_events()
        return held

    def _is_plausible(self, events: Events, waited_us: int) -> NDArray[np.bool_]:
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


def _same_clock(first: Events, second: Events, max_jump_us: int | None) -> bool:
    """Whether the times of two packets are close to each other."""
    apart = abs(int(np.median(first["t"])) - int(np.median(second["t"])))
    return max_jump_us is not None and apart <= max_jump_us
