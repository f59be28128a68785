"""From a source to predictions: a thread reads into a bounded queue, and the network runs in the calling thread.

Memory does not grow with the length of the stream, and dropped events are counted by reason.
"""

import time
from collections.abc import Callable
from threading import Thread

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.stream.buffering import EventQueue, EventSorter, QueuedPacket, RateLimiter
from ripe_mambaspike.inference.stream.source_registry import POLL_SECONDS, Pace, StreamSource
from ripe_mambaspike.inference.stream.sources import is_always_live, open_stream
from ripe_mambaspike.inference.stream.summary import LatencyHistogram, StreamLimits, StreamSummary
from ripe_mambaspike.inference.streamer import (
    Streamer,
    StreamPrediction,
    check_stream,
    default_hop,
    default_window,
    without_crop,
)

MESSAGE_INTERVAL_SECONDS = 5.0  # between two messages about invalid packets
MAX_CLOCK_JUMP_US = 10_000_000  # of a live source's clock; more may be damage


class StreamRunner:
    """One source through one network, whose streamer is made when the sensor's size is known.

    `check_sensor` raises InputError for a sensor that the network cannot take; without it the streamer is made to find
    out. A live source goes on after such a packet. With `report_invalid` invalid packets are reported as they come.
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
        if limits.max_rate is not None and not source.live:
            raise _rate_without_drops(limits.max_rate)
        self.source, self.limits, self.summary = source, limits, StreamSummary()
        self._make_streamer, self._should_stop = make_streamer, should_stop
        self._on_prediction, self._on_message = on_prediction, on_message
        self._streamer: Streamer | None = make_streamer(source.size) if source.size is not None else None
        self._queue = EventQueue(limits.queue_events)
        self._limiter = None if limits.max_rate is None else RateLimiter(limits.max_rate)
        self._sorter = EventSorter(limits.tolerance_us, MAX_CLOCK_JUMP_US if source.live else None)
        self._report_invalid = report_invalid
        if self._streamer is None and hasattr(source, "check_sizes"):
            source.check_sizes(check_sensor or self._make_now)
        self._latency = LatencyHistogram()
        self._failure: BaseException | None = None
        self._over = self._replace = False
        self._late = 0  # events that were too late for streamers that were replaced
        self._first_us: int | None = None
        self._last: tuple[int, float] | None = None  # the newest event's time, and when it came
        self._reported, self._reported_at = 0, float("-inf")  # invalid packets

    def run(self) -> StreamSummary:
        """Run until the source ends, `max_predictions` is reached, or `should_stop`; summarizes after errors too."""
        began = time.monotonic()
        reader = Thread(target=self._read, name="stream reader", daemon=True)
        reader.start()
        quiet_since, stalled = began, False
        try:
            while not self._stopping() and not self._queue.drained:
                packet = self._queue.get(min(POLL_SECONDS, self.limits.stall_seconds))
                now = time.monotonic()
                self._report_packets(now)
                if self._replace:
                    self._remake_streamer()
                if packet is not None:
                    quiet_since, stalled = now, False
                    self._take(packet)
                elif now - quiet_since >= self.limits.stall_seconds and not self._queue.drained:
                    if not stalled:
                        self.summary.stalls += 1
                        self._on_message(f"no events for {now - quiet_since:.1f} s")
                    stalled = True
                    self._advance_idle_clock(now)
            self._report_packets(time.monotonic())
            ended = not self._stopping()
            if ended:
                self._push(self._sorter.flush(), time.monotonic())
                self._close_last_bin()
        finally:
            self._over = True
            self._queue.end()
            reader.join()
            self._summarize(time.monotonic() - began)
        if self._failure is not None:
            raise self._failure
        if ended:
            self._report_end()
        return self.summary

    def dropped(self) -> dict[str, int]:
        """Events left out so far, by reason."""
        return {
            "queue": self._queue.dropped,
            "rate": 0 if self._limiter is None else self._limiter.dropped,
            "late": self._late + (0 if self._streamer is None else self._streamer.late),
            "stray": self._sorter.stray,
        }

    def _read(self) -> None:
        """Read packets into the queue (reader thread)."""
        try:
            for events in self.source.packets(lambda: self._over):
                allowed = events if self._limiter is None else self._limiter.limit(events)
                if not self._queue.put(QueuedPacket(allowed, time.monotonic()), wait=not self.source.live):
                    break
        except BaseException as failure:
            self._failure = failure
        finally:
            self._queue.end()

    def _make_now(self, size: tuple[int, int]) -> None:
        """Make the streamer at the first events of a sensor, which checks the sensor (reader thread)."""
        self._streamer = self._make_streamer(size)

    def replace_streamer(self) -> None:
        """Make the streamer again before the next packet, as `make_streamer` does then; open windows are dropped."""
        self._replace = True

    def _remake_streamer(self) -> None:
        self._replace = False
        if self._streamer is not None:
            self._late += self._streamer.late
            self._streamer = self._make_streamer(self._streamer.sensor_size)

    def _stopping(self) -> bool:
        wanted = self.limits.max_predictions
        return (wanted is not None and self.summary.predictions >= wanted) or self._should_stop()

    def _take(self, packet: QueuedPacket) -> None:
        waited = 0.0 if self._last is None else packet.arrived - self._last[1]
        for events, restarted in self._sorter.push(packet.events, round(1e6 * waited)):
            if restarted and self._streamer is not None:
                self._streamer.reset()
                self.summary.restarts += 1
                self._first_us = self._last = None
                self._on_message("the source's clock restarted; open windows are dropped")
            self._push(events, packet.arrived)

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
        self._deliver(self._streamer.push(events), arrived)

    def _advance_idle_clock(self, now: float) -> None:
        if self.source.live and self._streamer is not None:
            self._push(self._sorter.flush(), now)
            if self._last is not None:
                newest, arrived = self._last
                self._deliver(self._streamer.advance(newest + int((now - arrived) * 1e6)), now)

    def _close_last_bin(self) -> None:
        """A source ends with its last event: a window that ends there is full."""
        if self._failure is None and self._streamer is not None and self._last is not None:
            self._deliver(self._streamer.advance(self._last[0] + 1), time.monotonic())

    def _report_packets(self, now: float) -> None:
        count = self.source.invalid
        if not self._report_invalid or count == self._reported:
            return
        if now - self._reported_at < MESSAGE_INTERVAL_SECONDS:
            return
        self._on_message(f"{count:,} invalid packet{'s' * (count > 1)} (the last: {self.source.last_invalid})")
        self._reported, self._reported_at = count, now

    def _report_end(self) -> None:
        """Report why a source that ended gave no prediction."""
        summary = self.summary
        if not summary.events and summary.invalid_packets and not any(summary.dropped.values()):
            raise InputError.expected(
                "source",
                "packets as docs/streaming.md describes",
                f"{summary.invalid_packets:,} that are invalid (the last: {summary.last_invalid})",
            )
        if summary.predictions or self._streamer is None or self._first_us is None or self._last is None:
            return
        duration, window = self._last[0] + 1 - self._first_us, self._streamer.window_us
        if duration < window:
            self._on_message(
                f"the stream lasted {_milliseconds(duration)} ms, less than the window of {_milliseconds(window)} ms; "
                "give a shorter --window"
            )

    def _deliver(self, predictions: list[StreamPrediction], arrived: float) -> None:
        """Pass predictions on. Latency is measured from the packet's arrival (live source) or the end of the bin."""
        assert self._streamer is not None
        now = time.monotonic()
        for prediction in predictions:
            if prediction.final:
                self.summary.predictions += 1
            else:
                self.summary.early_predictions += 1
            self._latency.add(now - arrived if self.source.live else prediction.seconds)
            self._on_prediction(prediction)
            if self._stopping():
                return
        self._streamer.finish_pending()

    def _summarize(self, seconds: float) -> None:
        summary, source, streamer = self.summary, self.source, self._streamer
        summary.seconds = seconds
        summary.sensor_size = source.size
        summary.sensor_size_from = getattr(source, "size_from", None) if source.size else None
        summary.dropped = self.dropped()
        summary.silent_windows = 0 if streamer is None else streamer.silent
        summary.invalid_packets, summary.last_invalid = source.invalid, source.last_invalid
        summary.lost_packets = getattr(source, "lost", 0)
        summary.losses = {name: count for name, count in getattr(source, "losses", {}).items() if count}
        summary.latency_ms = self._latency.to_milliseconds()


def make_stream(
    classifier: Classifier,
    source: str,
    *,
    window_us: int | None = None,
    hop_us: int | None = None,
    early: bool = False,
    pace: Pace = "real",
    format: str | None = None,
    limits: StreamLimits | None = None,
    on_prediction: Callable[[StreamPrediction], None],
    on_message: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> StreamRunner:
    """A source through a network; `run()` on the result streams until it ends.

    The source is a file, `-`, udp://HOST:PORT, tcp://HOST:PORT or a camera, as for `open_stream`.

    `format` names the format of a file, as for `read`; without a header it is then one of the network's sensor.

    The window is as long as the training clips and the hop is one bin, unless they are given. All that can be checked
    before the first event is checked here.
    """
    limits = limits or StreamLimits()
    if limits.max_rate is not None and pace == "fast" and not is_always_live(source):
        raise _rate_without_drops(limits.max_rate)
    window = default_window(classifier) if window_us is None else window_us
    hop = default_hop(classifier, window) if hop_us is None else hop_us
    fitted = without_crop(classifier)
    check_stream(fitted, fitted.sensor_size or fitted.grid[::-1], window, hop, early)
    size = classifier.sensor_size if classifier.sensor_given else None
    return StreamRunner(
        open_stream(source, pace=pace, sensor_size=size, region=classifier.region, format=format),
        lambda size: Streamer(classifier, size, window_us=window, hop_us=hop, early=early),
        limits,
        on_prediction=on_prediction,
        on_message=on_message,
        should_stop=should_stop,
        check_sensor=lambda size: check_stream(classifier, size, window, hop),
        report_invalid=True,
    )


def _rate_without_drops(max_rate: float) -> InputError:
    return InputError.expected("max_rate", "none with --pace fast, at which nothing is dropped", f"{max_rate:g}")


def _milliseconds(microseconds: int) -> str:
    return f"{microseconds / 1000:.3f}".rstrip("0").rstrip(".")
