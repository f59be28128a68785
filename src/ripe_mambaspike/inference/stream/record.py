"""`record`: the events of a camera, or of any other source, into a file."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recorder import EventRecorder
from ripe_mambaspike.events.recording import SIZE_EXPECTED, Events, is_size
from ripe_mambaspike.events.region import Crop, Size, check_crop, crop_events, format_size, inside
from ripe_mambaspike.events.writing import check_target
from ripe_mambaspike.files import unfinished_versions
from ripe_mambaspike.inference.stream.buffering import EventQueue, QueuedPacket
from ripe_mambaspike.inference.stream.source_registry import POLL_SECONDS, Pace, StreamSource
from ripe_mambaspike.inference.stream.sources import open_stream

QUEUE_EVENTS = 8_000_000  # waiting for the disk, about 100 MB
GRACE_SECONDS = 0.5  # for the events of the last moment to arrive
QUIET_SECONDS = 5.0  # without an event, after which it is said


@dataclass
class RecordSummary:
    """Statistics of a recording."""

    path: Path
    events: int = 0  # in the file
    first_us: int | None = None  # of the events in the file
    last_us: int | None = None
    seconds: float = 0.0  # by the wall clock
    bytes: int = 0
    sensor_size: Size | None = None  # of the file
    source_size: Size | None = None  # of the source, before crop and scale
    dropped: dict[str, int] = field(default_factory=dict)  # events that were not recorded, by reason
    losses: dict[str, int] = field(default_factory=dict)  # what the source lost, by a description with its unit
    other: dict[str, int] = field(default_factory=dict)  # data of other kinds, which is not recorded
    invalid_packets: int = 0
    last_invalid: str | None = None
    lost_packets: int = 0  # datagrams that the operating system dropped (Linux)
    backwards: int = 0  # times that run back
    ended: str = "the source ended"

    @property
    def duration_us(self) -> int:
        return 0 if self.first_us is None or self.last_us is None else self.last_us - self.first_us

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path), "duration_us": self.duration_us}


def record(
    source: str | StreamSource,
    out: str | Path,
    *,
    seconds: float | None = None,
    events: int | None = None,
    sensor_size: Size | None = None,
    crop: Crop | None = None,
    scale: Size | None = None,
    pace: Pace = "real",
    format: str | None = None,
    queue_events: int = QUEUE_EVENTS,
    force: bool = False,
    on_start: Callable[[RecordSummary], None] = lambda summary: None,
    on_message: Callable[[str], None] = lambda message: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RecordSummary:
    """Record a source into a file, in the format of its ending, until it ends, `should_stop`, or enough was recorded.

    source: a camera, a port, a file or `-`, as for `open_stream`, or an opened source
    seconds: of the source's clock, from its first event on
    events: the number of events after which to stop
    sensor_size: of the source, where it does not say
    crop: the part of the sensor that is kept, (x, y, width, height); its corner becomes the origin
    scale: the size to which coordinates are scaled down, after the crop; events fall together on fewer pixels
    format: name of the format of a source that is a file, as for `read`
    queue_events: that may wait for the disk; beyond, the sender waits if it can (files, pipes and connections), and
        otherwise the oldest are dropped and counted
    force: replace an existing file
    on_start: gets the summary, which is kept up to date and is complete after errors, too

    The file appears when the recording is complete. If the source fails, or the format cannot hold further events, it
    has what came before, and the error is raised then.
    """
    path = Path(os.fspath(out))
    _check_options(path, seconds, events, scale, force)
    if isinstance(source, str):
        opened = open_stream(source, pace=pace, sensor_size=sensor_size, format=format)
    elif format is None:
        opened = source
    else:
        raise InputError.expected("format", "the name of a file as the source", "an opened source")
    job = _RecordJob(opened, path, _Fit(crop, scale), seconds, events, queue_events)
    on_start(job.summary)
    for left in unfinished_versions(path):
        on_message(f"{left} is an unfinished recording of an earlier run, which was killed; it is kept")
    return job.run(on_message, should_stop)


def _check_options(path: Path, seconds: float | None, events: int | None, scale: Size | None, force: bool) -> None:
    check_target(path)
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise InputError.expected("seconds", "more than 0", f"{seconds:g}")
    if events is not None and events < 1:
        raise InputError.expected("events", "at least 1", events)
    if scale is not None and not is_size(scale):
        raise InputError.expected("scale", SIZE_EXPECTED, scale)
    if not path.parent.is_dir():
        raise InputError.expected("out", "a file in a folder that exists", "none", path=path)
    if path.is_dir() or (path.exists() and not force):
        raise InputError.expected("out", "a new file, or --force to replace it", "one that exists", path=path)


@dataclass(frozen=True)
class _Fit:
    """What is kept of the sensor, and how large it becomes."""

    crop: Crop | None
    scale: Size | None

    def size(self, source: Size) -> Size:
        kept = source if self.crop is None else check_crop(self.crop, source)[2:]
        if self.scale is not None and (self.scale[0] > kept[0] or self.scale[1] > kept[1]):
            raise InputError.expected("scale", f"at most {format_size(kept)}", format_size(self.scale))
        return self.scale or kept

    def first(self, events: Events, count: int) -> Events:
        """The events up to the one after which `count` are kept."""
        if self.crop is None:
            return events[:count]
        kept = np.flatnonzero(inside(events, self.crop))
        return events[: kept[count - 1] + 1] if count <= len(kept) else events

    def apply(self, events: Events, source: Size) -> Events:
        kept = source if self.crop is None else self.crop[2:]
        events = events.copy() if self.crop is None else crop_events(events, self.crop)
        if self.scale is not None:
            for name, side, goal in zip("xy", kept, self.scale, strict=True):
                events[name] = events[name].astype(np.int64) * goal // side
        return events


class _RecordJob:
    """A reader thread fills a queue; the caller's thread empties it into the file."""

    def __init__(
        self, source: StreamSource, path: Path, fit: _Fit, seconds: float | None, events: int | None, capacity: int
    ) -> None:
        self.summary = RecordSummary(path)
        self._source, self._fit = source, fit
        self._max_us = None if seconds is None else round(seconds * 1e6)
        self._max_events = events
        self._queue = EventQueue(capacity)
        self._can_wait = not source.live or getattr(source, "can_wait", False)
        self._recorder = EventRecorder(path)
        self._failure: BaseException | None = None
        self._over = False
        self._began = self._first_at = 0.0
        self._start_us: int | None = None  # of the source, whatever is kept of it
        self._left_out = 0  # by the crop
        if source.size is not None:
            self._set_size(source.size)

    def run(self, on_message: Callable[[str], None], should_stop: Callable[[], bool]) -> RecordSummary:
        self._began = quiet_since = time.monotonic()
        dropping = False
        reader = Thread(target=self._read, name="record reader", daemon=True)
        reader.start()
        try:
            with self._recorder:
                while not self._queue.drained:
                    packet = self._queue.get(POLL_SECONDS)
                    now = time.monotonic()
                    if packet is not None and len(packet.events):
                        quiet_since = now
                        self._take(packet.events, now)
                    elif now - quiet_since > QUIET_SECONDS:
                        quiet_since = now
                        on_message(f"no events for {QUIET_SECONDS:g} s")
                    if self._queue.dropped and not dropping:
                        dropping = True
                        on_message(f"events are being dropped: more than {self._queue.capacity:,} wait for the disk")
                    if self._is_enough(now):
                        self.summary.ended = "enough was recorded"
                        break
                    if not self._over and should_stop():
                        self.summary.ended = "it was stopped"
                        self._over = True  # the reader ends; what has arrived is still written
        finally:
            self._over = True
            self._queue.end()
            reader.join()
            self._summarize()
        if self._failure is not None:
            self.summary.ended = "the source failed"
            raise self._failure
        if not self.summary.events:
            invalid = self.summary.invalid_packets
            got = f"none ({invalid:,} invalid packets, the last: {self.summary.last_invalid})" if invalid else "none"
            raise InputError.expected("source", "at least one event", got)
        return self.summary

    def _read(self) -> None:
        """Read packets into the queue (reader thread)."""
        try:
            for events in self._source.packets(lambda: self._over):
                if not self._queue.put(QueuedPacket(events, time.monotonic()), wait=self._can_wait):
                    break
        except BaseException as failure:
            self._failure = failure
        finally:
            self._queue.end()

    def _set_size(self, size: Size) -> None:
        self._recorder.sensor_size = self.summary.sensor_size = self._fit.size(size)
        self.summary.source_size = size

    def _take(self, events: Events, now: float) -> None:
        size = self._source.size
        assert size is not None
        if self.summary.source_size is None:
            self._set_size(size)
        if self._start_us is None:
            self._start_us, self._first_at = int(events["t"][0]), now
        if self._max_us is not None:
            self._newest_us = int(events["t"].max())
            events = events[events["t"] < self._start_us + self._max_us]
        if self._max_events is not None:
            events = self._fit.first(events, self._max_events - self._recorder.events)
        fitted = self._fit.apply(events, size)
        self._left_out += len(events) - len(fitted)
        if not len(fitted):
            return
        times = fitted["t"]
        back = int(np.count_nonzero(times[1:] < times[:-1]))
        self._recorder.add(fitted)
        summary = self.summary
        summary.backwards += back + int(self._last_time is not None and times[0] < self._last_time)
        self._last_time = int(times[-1])
        first, last = int(times.min()), int(times.max())
        summary.first_us = first if summary.first_us is None else min(first, summary.first_us)
        summary.last_us = last if summary.last_us is None else max(last, summary.last_us)
        summary.events = self._recorder.events

    _newest_us: int | None = None
    _last_time: int | None = None

    def _is_enough(self, now: float) -> bool:
        if self._max_events is not None and self._recorder.events >= self._max_events:
            return True
        if self._max_us is None or self._start_us is None:
            return False
        if self._newest_us is not None and self._newest_us >= self._start_us + self._max_us:
            return True
        late = now - self._first_at > self._max_us / 1e6 + GRACE_SECONDS
        return self._source.live and late and not self._queue.waiting

    def _summarize(self) -> None:
        summary, source = self.summary, self._source
        summary.events, summary.bytes = self._recorder.events, self._recorder.written_bytes
        summary.seconds = time.monotonic() - self._began
        found = {"queue": self._queue.dropped, "outside the crop": self._left_out}
        summary.dropped = {name: count for name, count in found.items() if count}
        summary.losses = {name: count for name, count in getattr(source, "losses", {}).items() if count}
        summary.other = {name: count for name, count in getattr(source, "other", {}).items() if count}
        summary.invalid_packets, summary.last_invalid = source.invalid, source.last_invalid
        summary.lost_packets = getattr(source, "lost", 0)
