"""Play a recording as a live source: its events as packets over UDP or TCP, by the clock of the recording.

`ripe stream --source` and `ripe serve --source` read them. What could not be delivered is counted by reason.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import LIMITS, Events
from ripe_mambaspike.events.region import SensorRegion
from ripe_mambaspike.inference.stream.addresses import parse_address
from ripe_mambaspike.inference.stream.file_source import FileSource, split_events
from ripe_mambaspike.inference.stream.links import PacketLink, open_link
from ripe_mambaspike.inference.stream.packets import MAX_SEQUENCE, write_packet
from ripe_mambaspike.inference.stream.source_registry import POLL_SECONDS, Stopped

SEND_US = 2_000  # of the wall clock in one packet: a longer one would add delay
MIN_SPEED, MAX_SPEED = 0.001, 1000.0


@dataclass
class SendSummary:
    """Statistics of what was sent."""

    rounds: int = 0  # whole ones
    events: int = 0  # that were sent
    packets: int = 0
    lost: dict[str, int] = field(default_factory=dict)  # events that were not delivered, by reason
    seconds: float = 0.0
    behind_seconds: float = 0.0  # the most that a packet was sent after its time
    sensor_size: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class RecordingSender:
    """A recording to one receiver. All that can be checked before the first event is checked here.

    to: udp://HOST:PORT, or tcp://HOST:PORT where a receiver listens already
    speed: 2 plays twice as fast; the events keep their times
    loop: start again at the end; the times then go on, so that the receiver sees one stream without an end
    sensor_size: overrides the size that the file names
    format: name of the file's format, where it is not to be found by content, as for `read`
    """

    def __init__(
        self,
        path: Path,
        to: str,
        *,
        speed: float = 1.0,
        loop: bool = False,
        sensor_size: tuple[int, int] | None = None,
        format: str | None = None,
        on_message: Callable[[str], None] = lambda message: None,
        should_stop: Stopped = lambda: False,
    ) -> None:
        if not (math.isfinite(speed) and MIN_SPEED <= speed <= MAX_SPEED):
            raise InputError.expected("speed", f"{MIN_SPEED:g} to {MAX_SPEED:g}", f"{speed:g}")
        address = parse_address(to, "to")
        if address.port == 0:
            raise InputError.expected("to", "a port from 1 to 65535", to)
        self._source = FileSource(path, "fast", sensor_size, SensorRegion(), format)
        self._speed, self._loop = speed, loop
        self._on_message, self._stopped = on_message, should_stop
        self.summary = SendSummary(sensor_size=self._source.size)
        self._first_us: int | None = None  # of the recording
        self._last_us = self._shift_us = 0
        self._began = 0.0
        self._link: PacketLink = open_link(address)

    def run(self) -> SendSummary:
        """Send until the recording ends, or `should_stop`; the summary is complete after errors, too."""
        self._began = time.monotonic()
        try:
            with self._link:
                self._play()
                while self._loop and not self._stopped():
                    self._next_round()
                    self._play()
                if not self._stopped() and not self._link.finish(self._stopped):
                    self._on_message("the receiver has not read everything yet")
        finally:
            self._summarize()
        if not self.summary.events and self.summary.lost:
            reasons = ", ".join(self.summary.lost)
            raise InputError.expected("to", "a receiver", f"none that got an event ({reasons})")
        return self.summary

    def _play(self) -> None:
        """One round."""
        for piece in self._source.packets(self._stopped):
            for events in split_events(piece, round(SEND_US * max(1.0, self._speed)), self._link.max_events):
                self._wait_for(events)
                if self._stopped():
                    return
                self._send(events)
        if self._first_us is None:
            raise InputError.expected("recording", "at least one event", "none", path=self._source.path)
        if not self._stopped():
            self.summary.rounds += 1
            if self.summary.rounds == 1:
                for sentence in self._source.warnings:
                    self._on_message(f"{self._source.path}: {sentence}")

    def _next_round(self) -> None:
        """Later times for the next round, so that they go on; the earliest ones again before they get out of range."""
        assert self._first_us is not None
        duration = self._last_us - self._first_us + 1
        fits = self._last_us + self._shift_us + duration <= LIMITS["t"][1]
        if not fits:
            self._began = time.monotonic()
        self._shift_us = self._shift_us + duration if fits else 0

    def _wait_for(self, events: Events) -> None:
        newest = int(events["t"].max())
        if self._first_us is None:
            self._first_us = self._last_us = int(events["t"][0])
        self._last_us = max(self._last_us, newest)
        due = self._began + (newest + self._shift_us - self._first_us) / 1e6 / self._speed
        while not self._stopped() and (left := due - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))
        self.summary.behind_seconds = max(self.summary.behind_seconds, time.monotonic() - due)

    def _send(self, events: Events) -> None:
        assert self._source.size is not None
        events["t"] += self._shift_us  # a copy
        before = bool(self._link.lost)
        number = self.summary.packets & MAX_SEQUENCE if self._link.numbered else None
        self.summary.packets += 1
        self.summary.events += len(events)
        self._link.send(write_packet(events, self._source.size, number), len(events), self._stopped)
        if self._link.lost and not before:
            self._on_message(f"events are being lost: {next(iter(self._link.lost))}")

    def _summarize(self) -> None:
        summary, lost = self.summary, Counter(self._link.lost)
        summary.seconds = time.monotonic() - self._began
        summary.events -= lost.total()
        summary.packets -= self._link.lost_packets
        summary.lost = dict(lost)
