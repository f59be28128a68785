"""From a source to answers: a thread reads, a bounded queue stands between, the network computes here.

Nothing grows with the stream's length, and whatever is left out is counted by kind.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.inference.stream.event_queue import EventQueue, QueuedPacket, RateLimiter
from ripe_mambaspike.inference.stream.latency import LatencyHistogram
from ripe_mambaspike.inference.stream.sorting import EventSorter
from ripe_mambaspike.inference.stream.sources import POLL_SECONDS, StreamSource
from ripe_mambaspike.inference.streamer import Streamer, StreamPrediction

MESSAGE_INTERVAL_SECONDS = 5.0  # seconds between two words about refused packets
MAX_CLOCK_JUMP_US = 10_000_000  # a live source's clock that moves by more at once is doubted


@dataclass(frozen=True)
class StreamLimits:
    """What a stream may cost."""

    queue_events: int = 1_000_000  # waiting for the network; beyond, the oldest are dropped
    rate: float | None = None  # events a second let in
    tolerance_us: int = 0  # how late an event may come and still be sorted in
    stall_seconds: float = 1.0  # without a packet, after which it is told and time goes on by the wall clock
    answers: int | None = None  # final answers after which to stop

    def __post_init__(self) -> None:
        if not self.stall_seconds > 0:
            raise InputError(f"the stall is {self.stall_seconds} s; more than 0 is wanted")
        if self.answers is not None and self.answers < 1:
            raise InputError(f"{self.answers} answers are asked for; at least 1 is wanted")


@dataclass
class StreamSummary:
    """How a stream went."""

    events: int = 0  # that reached the network
    answers: int = 0
    early_answers: int = 0
    silent_windows: int = 0
    seconds: float = 0.0
    stalls: int = 0
    restarts: int = 0  # clocks that began anew
    dropped: dict[str, int] = field(default_factory=dict)  # events, by kind
    refused_packets: int = 0
    last_refusal: str | None = None
    latency_ms: dict[str, float | None] = field(default_factory=dict)
    sensor_size: tuple[int, int] | None = None  # (width, height) before the crop, and who named it
    sensor_size_from: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class StreamRunner:
    """One source through one network, whose streamer is made when the sensor's size is known.

    `usable` raises InputError for a sensor that the network cannot take; without it the streamer is made to find out.
    A live source goes on after such a packet. With `tell_refusals` refused packets are said while they come.
    """

    def __init__(
        self,
        source: StreamSource,
        make_streamer: Callable[[tuple[int, int]], Streamer],
        limits: StreamLimits,
        *,
        on_prediction: Callable[[StreamPrediction], None],
        on_message: Callable[[str], None],
        should_stop: Callable[[], bool] = lambda: False,
        check_sensor: Callable[[tuple[int, int]], None] | None = None,
        report_invalid: bool = False,
    ) -> None:
        if limits.rate is not None and not source.live:
            raise InputError(
                f"a rate of {limits.rate:g} events/s is asked for at the pace fast, at which nothing is dropped; "
                "the pace real, or no such limit, is wanted"
            )
        self.source, self.limits, self.summary = source, limits, StreamSummary()
        self._make_streamer, self._answered, self._says, self._asked = (
            make_streamer,
            on_prediction,
            on_message,
            should_stop,
        )
        self._streamer: Streamer | None = make_streamer(source.size) if source.size is not None else None
        self._queue = EventQueue(limits.queue_events)
        self._limiter = None if limits.rate is None else RateLimiter(limits.rate)
        self._sorter = EventSorter(limits.tolerance_us, MAX_CLOCK_JUMP_US if source.live else None)
        self._tell_refusals = report_invalid
        if self._streamer is None and hasattr(source, "check_sizes"):
            source.check_sizes(check_sensor or self._make_now)
        self._latency = LatencyHistogram()
        self._failure: BaseException | None = None
        self._over = False
        self._first_us: int | None = None
        self._last: tuple[int, float] | None = None  # the newest event's time, and when it came
        self._refusals_told, self._told_at = 0, float("-inf")

    def run(self) -> StreamSummary:
        """Until the source ends, enough was answered, or a stop was asked for. The summary is there also on failure."""
        began = time.monotonic()
        reader = Thread(target=self._read, name="stream reader", daemon=True)
        reader.start()
        quiet_since, stalled = began, False
        try:
            while not self._stopping() and not self._queue.over:
                packet = self._queue.get(min(POLL_SECONDS, self.limits.stall_seconds))
                now = time.monotonic()
                self._say_refusals(now)
                if packet is not None:
                    quiet_since, stalled = now, False
                    self._take(packet)
                elif now - quiet_since >= self.limits.stall_seconds and not self._queue.over:
                    if not stalled:
                        self.summary.stalls += 1
                        self._says(f"no events for {now - quiet_since:.1f} s")
                    stalled = True
                    self._let_time_pass(now)
            self._say_refusals(time.monotonic())
            ended = not self._stopping()
            if ended:
                self._push(self._sorter.flush(), time.monotonic())
                self._close_last_bin()
        finally:
            self._over = True
            self._queue.end()
            reader.join()
            self._finish(time.monotonic() - began)
        if self._failure is not None:
            raise self._failure
        if ended:
            self._say_how_it_ended()
        return self.summary

    def dropped(self) -> dict[str, int]:
        """Events left out so far, by kind."""
        return {
            "queue": self._queue.dropped,
            "rate": 0 if self._limiter is None else self._limiter.dropped,
            "late": 0 if self._streamer is None else self._streamer.late,
            "stray": self._sorter.stray,
        }

    def _read(self) -> None:
        """The reader's thread."""
        try:
            for events in self.source.packets(lambda: self._over):
                passed = events if self._limiter is None else self._limiter.pass_on(events)
                if not self._queue.put(QueuedPacket(passed, time.monotonic()), wait=not self.source.live):
                    break
        except BaseException as failure:
            self._failure = failure
        finally:
            self._queue.end()

    def _make_now(self, size: tuple[int, int]) -> None:
        """The reader's thread, at the first events of a sensor: whether it is of use shows by trying."""
        self._streamer = self._make_streamer(size)

    def _stopping(self) -> bool:
        enough = self.limits.answers is not None and self.summary.answers >= self.limits.answers
        return enough or self._asked()

    def _take(self, packet: QueuedPacket) -> None:
        waited = 0.0 if self._last is None else packet.arrived - self._last[1]
        for ordered in self._sorter.push(packet.events, round(1e6 * waited)):
            if ordered.restarted and self._streamer is not None:
                self._streamer.close()
                self.summary.restarts += 1
                self._first_us = self._last = None
                self._says("the source's clock began anew; the windows in flight are given up")
            self._push(ordered.events, packet.arrived)

    def _push(self, events: Events, arrived: float) -> None:
        if not len(events):
            return
        if self._streamer is None:
            assert self.source.size is not None
            self._streamer = self._make_streamer(self.source.size)
        self.summary.events += len(events)
        first, newest = int(events["t"].min()), int(events["t"].max())
        self._first_us = first if self._first_us is None else self._first_us
        self._last = (newest if self._last is None else max(newest, self._last[0]), arrived)
        self._tell(self._streamer.push(events), arrived)

    def _let_time_pass(self, now: float) -> None:
        if self.source.live and self._streamer is not None:
            self._push(self._sorter.flush(), now)
            if self._last is not None:
                newest, arrived = self._last
                self._tell(self._streamer.advance(newest + int((now - arrived) * 1e6)), now)

    def _close_last_bin(self) -> None:
        """The end of a source is the end of the time of its last event: a window that ends there is full."""
        if self._failure is None and self._streamer is not None and self._last is not None:
            self._tell(self._streamer.advance(self._last[0] + 1), time.monotonic())

    def _say_refusals(self, now: float) -> None:
        refused = self.source.refused
        if not self._tell_refusals or refused == self._refusals_told or now - self._told_at < MESSAGE_INTERVAL_SECONDS:
            return
        reason = self.source.last_reason
        one, more = f"a packet was refused ({reason})", f"{refused:,} packets were refused (the last: {reason})"
        self._says(one if refused == 1 else more)
        self._refusals_told, self._told_at = refused, now

    def _say_how_it_ended(self) -> None:
        """A source that ended by itself without an answer is not to end in silence."""
        summary = self.summary
        if not summary.events and summary.refused_packets and not any(summary.dropped.values()):
            raise InputError(
                f"the stream ended and none of its {summary.refused_packets:,} packets could be used "
                f"(the last: {summary.last_refusal}); frames as docs/streaming.md describes are wanted"
            )
        if summary.answers or self._streamer is None or self._first_us is None or self._last is None:
            return
        span, window = self._last[0] + 1 - self._first_us, self._streamer.window_us
        if span < window:
            self._says(
                f"the stream lasted {_milliseconds(span)} ms, shorter than the window of {_milliseconds(window)} ms; "
                "a shorter window is wanted"
            )

    def _tell(self, answers: list[StreamPrediction], arrived: float) -> None:
        """Hand the answers on. Live, they are late by the time since the packet came; else by what they took."""
        assert self._streamer is not None
        now = time.monotonic()
        for answer in answers:
            if answer.final:
                self.summary.answers += 1
            else:
                self.summary.early_answers += 1
            self._latency.add(now - arrived if self.source.live else answer.seconds)
            self._answered(answer)
            if self._stopping():
                return
        self._streamer.settle()

    def _finish(self, seconds: float) -> None:
        summary, latency = self.summary, self._latency
        streamer = self._streamer
        summary.seconds = seconds
        summary.sensor_size = self.source.size
        summary.sensor_size_from = getattr(self.source, "size_from", None) if self.source.size else None
        summary.dropped = self.dropped()
        summary.silent_windows = 0 if streamer is None else streamer.silent
        summary.refused_packets, summary.last_refusal = self.source.refused, self.source.last_reason
        found = {f"p{share}": latency.percentile(share) for share in (50, 95, 99)}
        found["max"] = latency.longest if latency.count else None
        summary.latency_ms = {name: None if one is None else 1e3 * one for name, one in found.items()}


def _milliseconds(microseconds: int) -> str:
    return f"{microseconds / 1000:.3f}".rstrip("0").rstrip(".")
