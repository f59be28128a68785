"""Between the source and the network: a queue of bounded size, and a limit on the rate. What is dropped is counted."""

import math
import time
from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import NamedTuple

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events


class QueuedPacket(NamedTuple):
    """Events, and when they arrived on the process's own clock (seconds)."""

    events: Events
    arrived: float


class EventQueue:
    """Packets of at most `capacity` events together (or one packet). A full queue drops its oldest, or makes wait."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InputError(f"the queue is {capacity} events long; at least 1 is wanted")
        self.capacity = capacity
        self.dropped = 0  # events
        self._packets: deque[QueuedPacket] = deque()
        self._events = 0
        self._ended = False
        self._changed = Condition()

    def put(self, packet: QueuedPacket, wait: bool = False) -> bool:
        """Hand a packet over; with `wait` nothing is dropped. False once the queue has been ended."""
        with self._changed:
            while wait and self._packets and self._events + len(packet.events) > self.capacity and not self._ended:
                self._changed.wait()
            if self._ended:
                return False
            self._packets.append(packet)
            self._events += len(packet.events)
            while self._events > self.capacity and len(self._packets) > 1:
                gone = self._packets.popleft()
                self._events -= len(gone.events)
                self.dropped += len(gone.events)
            self._changed.notify_all()
            return True

    def get(self, timeout: float) -> QueuedPacket | None:
        """The oldest packet; None when none came in time, or none will."""
        with self._changed:
            self._changed.wait_for(lambda: self._packets or self._ended, timeout)
            if not self._packets:
                return None
            packet = self._packets.popleft()
            self._events -= len(packet.events)
            self._changed.notify_all()
            return packet

    def end(self) -> None:
        """Nothing more will be put; what is there can still be taken."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def over(self) -> bool:
        """Whether it has been ended and is empty."""
        with self._changed:
            return self._ended and not self._packets


class RateLimiter:
    """At most `rate` events a second, with a second's worth in one go; the first events of a packet pass."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not 1 <= rate < math.inf:
            raise InputError(f"the rate is {rate} events/s; a number from 1 on is wanted")
        self.rate, self.dropped = rate, 0
        self._clock, self._credit, self._last = clock, rate, clock()

    def pass_on(self, events: Events) -> Events:
        now = self._clock()
        self._credit = min(self.rate, self._credit + (now - self._last) * self.rate)
        self._last = now
        allowed = min(len(events), int(self._credit))
        self._credit -= allowed
        self.dropped += len(events) - allowed
        return events[:allowed]
