"""Open recordings of any format. The format is detected by content, and events are checked while they are read.

Errors name the file, the byte and the reason. Times that run backwards, negative times and events outside the sensor
are counted and reported as warnings; `strict` turns these into errors. A file whose events would take far more memory
than the file has bytes is refused: it is a decompression bomb or a sparse file.
"""

import errno
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import ripe_mambaspike.events.formats  # noqa: F401  (registers them)
from ripe_mambaspike.errors import InputError, ReadError, one_line
from ripe_mambaspike.events.recording import (
    EVENT,
    SIZE_EXPECTED,
    Events,
    Recording,
    RecordingWarning,
    check_int,
    is_size,
)
from ripe_mambaspike.events.region import SENSOR_SIZES, likely_size
from ripe_mambaspike.events.registry import FORMATS, EventFormat
from ripe_mambaspike.events.source import (
    BASE_EVENT_BYTES,
    MAX_EXPANSION,
    MAX_TIME,
    EventSource,
    ReadOptions,
    check_expansion,
)
from ripe_mambaspike.own_modules import unknown_name

HEAD_BYTES = 1 << 13
MIN_ROOM, MAX_ROOM = 1 << 10, 1 << 26  # events that an array is first made for
MAX_SPARE = 16  # times the events that came
Opened = TypeVar("Opened")
MAX_METADATA_CHARS = 500  # of one entry; a header can have any number of characters


def read(
    path: str | Path,
    *,
    sensor_size: tuple[int, int] | None = None,
    time_unit: str | None = None,
    strict: bool = False,
    format: str | None = None,
) -> Recording:
    """Read a whole recording; the format is found by the file's content.

    Args:
        path: the file
        sensor_size: (width, height), for formats that do not store it
        time_unit: "s", "ms", "us" or "ns", for formats that do not fix it
        strict: raise where there would be a warning: events outside the sensor, times that run backwards, …
        format: name of the format, where it is not to be found by content, such as "dat" for a DAT file without its
            header
    """
    opened = open_recording(path, sensor_size=sensor_size, time_unit=time_unit, strict=strict, format=format)
    events = _joined(opened.pieces(), opened.size)
    opened.warn()
    return opened.recording(events)


def _joined(pieces: Iterator[Events], size: int) -> Events:
    """All pieces of a file of `size` bytes in one array. Each is copied at once, while the CPU's cache has it."""
    room = min(max(size, MIN_ROOM), MAX_ROOM)  # an event has at least a byte in most files
    events, count = np.empty(room, EVENT), 0  # memory that is never written to is not taken from the system
    for piece in pieces:
        end = count + len(piece)
        if end > len(events):
            larger = np.empty(max(2 * len(events), end), EVENT)
            larger[:count] = events[:count]
            events = larger
        events[count:end] = piece
        count = end
    return events[:count] if MAX_SPARE * count > len(events) else events[:count].copy()


def read_chunks(
    path: str | Path,
    *,
    events: int = 1_000_000,
    sensor_size: tuple[int, int] | None = None,
    time_unit: str | None = None,
    strict: bool = False,
    format: str | None = None,
) -> Iterator[Recording]:
    """Read a recording in chunks of `events` events (the last may have fewer), for files that are larger than memory.

    If the format does not store the sensor's size, a chunk has the likely size given the events so far. The last chunk
    has the warnings and the metadata of the whole recording.
    """
    size = check_int("events", events, 1)
    opened = open_recording(path, sensor_size=sensor_size, time_unit=time_unit, strict=strict, format=format)
    return _chunks(opened, size)


def _chunks(opened: "OpenRecording", size: int) -> Iterator[Recording]:
    waiting: list[Events] = []
    count = 0
    for piece in opened.pieces():
        waiting.append(piece)
        count += len(piece)
        while count > size:  # the last chunk is held back until the metadata is complete
            joined = np.concatenate(waiting) if len(waiting) > 1 else waiting[0]
            yield opened.recording(joined[:size].copy())
            waiting, count = [joined[size:]], count - size
    if count:
        yield opened.recording(np.concatenate(waiting))  # a copy
    opened.warn()


def open_recording(
    path: str | Path,
    *,
    sensor_size: tuple[int, int] | None = None,
    time_unit: str | None = None,
    strict: bool = False,
    format: str | None = None,
) -> "OpenRecording":
    """Open a recording without reading its events."""
    options = ReadOptions(sensor_size, time_unit)
    named = None if format is None else find_format(format)
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise InputError.expected("path", "the name of a file", path)
    path = Path(path)
    try:
        head, size = _head(path)
        known = sorted(FORMATS.values(), key=lambda one: one.order) if named is None else [named]
        for one in known:
            if (one is named and one.headerless) or one.recognizes(head, path):
                return OpenRecording(path, one.open(path, options), options, strict, size)
    except ReadError as error:
        raise error.in_file(path) from error.__cause__
    except OSError as error:
        raise ReadError.expected("file", "a readable recording", error, path=path) from error
    start = " ".join(f"{byte:02x}" for byte in head[:8])
    titles = ", ".join(one.title for one in known)
    raise ReadError.expected("format", f"one of {titles}", f"a file that starts with the bytes {start}", path=path)


def open_with_default_size(
    open_file: Callable[..., Opened],
    path: str | Path,
    *,
    sensor_size: tuple[int, int] | None,
    default_size: tuple[int, int] | None,
    format: str | None,
) -> Opened:
    """`read` or `open_recording`, where a file of a named format that lacks a header and a size has the default one."""
    try:
        return open_file(path, sensor_size=sensor_size, format=format)
    except ReadError as error:
        if error.field != "sensor_size" or format is None or default_size is None or sensor_size is not None:
            raise
        return open_file(path, sensor_size=default_size, format=format)


def find_format(name: str) -> EventFormat:
    """The format of that name."""
    if name not in FORMATS:
        raise unknown_name("format", name, sorted(FORMATS))
    return FORMATS[name]


class OpenRecording:
    """A recording whose events are read once, in chunks, and checked while they are read."""

    def __init__(self, path: Path, source: EventSource, options: ReadOptions, strict: bool, size: int) -> None:
        self.path = path
        self.size = size  # bytes of the file
        self.format = source.format
        self.strict = strict
        self.declared_size = options.sensor_size or source.sensor_size
        self.size_from = "the caller" if options.sensor_size else "the file" if source.sensor_size else "the events"
        self.events = 0  # read so far
        self.outside = self.backwards = self.negative = 0  # events outside the sensor, and of such times
        self._source = source
        self._last: int | None = None
        if self.declared_size and not is_size(self.declared_size):
            width, height = self.declared_size
            raise ReadError.expected("sensor_size", SIZE_EXPECTED, f"{width}×{height}", path=path)
        self.corner = (0, 0)  # the largest coordinates so far, if the sensor's size is not known

    def pieces(self) -> Iterator[Events]:
        """Yield the events in the order of the file. Those outside the sensor are dropped and counted."""
        seen = 0
        try:
            for piece in self._source.pieces():
                seen += len(piece)
                kept = self._check(piece, seen - len(piece))
                self.events += len(kept)
                check_expansion(seen, self.size)
                if len(kept):
                    yield kept
        except ReadError as error:
            raise error.in_file(self.path) from error.__cause__
        except OSError as error:
            raise ReadError.expected("file", "a readable recording", error, path=self.path) from error
        self._check_strict()
        if not self.events:
            got = f"none ({self.warnings[0]})" if self.warnings else "none"
            raise ReadError.expected("events", "at least one", got, path=self.path)

    def recording(self, events: Events) -> Recording:
        """The events as a recording of this sensor."""
        return Recording(events, self.sensor_size, self.format, self.metadata, self.warnings)

    @property
    def sensor_size(self) -> tuple[int, int]:
        """The size stored in the file, else the likely one given the events read so far."""
        return self.declared_size or likely_size(*self.corner, self._source.likely_sizes or SENSOR_SIZES)

    @property
    def metadata(self) -> dict[str, Any]:
        metadata = {
            name: one_line(value, MAX_METADATA_CHARS) if isinstance(value, str) else value
            for name, value in self._source.metadata.items()
        }
        named = self._source.sensor_size  # overridden by the caller
        overruled = {"sensor_size_in_file": list(named)} if named and named != self.declared_size else {}
        return {**metadata, "sensor_size_from": self.size_from, **overruled}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence per kind of problem found so far."""
        width, height = self.sensor_size
        found = [
            (self.outside, f"{{}} outside the {width}×{height} sensor left out"),
            (self.backwards, "times run backwards at {}"),
            (self.negative, "times before 0 at {}"),
            *((count, f"{{}} that {why} left out") for why, count in self._source.left_out.items()),
        ]
        return tuple(sentence.format(_events(count)) for count, sentence in found if count)

    def warn(self) -> None:
        for sentence in self.warnings:
            warnings.warn(one_line(f"{self.path}: {sentence}"), RecordingWarning, stacklevel=3)

    def _check(self, piece: Events, before: int) -> Events:
        if not len(piece):
            return piece
        times = np.ascontiguousarray(piece["t"])
        back = int(np.count_nonzero(times[1:] < times[:-1]))
        low, high = (int(times.min()), int(times.max())) if back else (int(times[0]), int(times[-1]))
        if not -MAX_TIME < low <= high < MAX_TIME:
            raise ReadError.expected("t", "times between −2⁶² and 2⁶² µs", low if low <= -MAX_TIME else high)
        if low < 0:
            self.negative += int(np.count_nonzero(times < 0))
        if self._last is not None and times[0] < self._last:
            back += 1
        self._last = int(times[-1])
        self.backwards += back
        right, bottom = int(piece["x"].max()), int(piece["y"].max())
        if self.declared_size is None:
            self.corner = (max(self.corner[0], right), max(self.corner[1], bottom))
        elif right >= self.declared_size[0] or bottom >= self.declared_size[1]:
            inside = (piece["x"] < self.declared_size[0]) & (piece["y"] < self.declared_size[1])
            self.outside += len(piece) - int(np.count_nonzero(inside))
            piece = piece[inside]
        self._check_strict(f" by event {before + len(times)}")
        return piece

    def _check_strict(self, where: str = "") -> None:
        if self.strict and self.warnings:
            got = f"{self.warnings[0]}{where}"
            raise ReadError.expected("strict", "a recording without warnings", got, path=self.path)


def _events(count: int) -> str:
    return f"{count:,} event" if count == 1 else f"{count:,} events"


def _head(path: Path) -> tuple[bytes, int]:
    """The first bytes of a regular file, and its size. Never blocks on a pipe."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "no plain file"
            raise ReadError.expected("file", "a recording", kind)
        head = os.read(descriptor, HEAD_BYTES)
        _check_holes(descriptor, facts.st_size)
    finally:
        os.close(descriptor)
    if not head:
        raise ReadError.expected("size", "a recording", "an empty file")
    return head, facts.st_size


def _check_holes(descriptor: int, size: int) -> None:
    """Refuse sparse files: their holes would be read as zeros for hours."""
    if size <= BASE_EVENT_BYTES or not hasattr(os, "SEEK_HOLE"):
        return
    written = at = 0
    try:
        while written * MAX_EXPANSION < size:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            at = os.lseek(descriptor, start, os.SEEK_HOLE)
            written += at - start
    except OSError as error:
        if error.errno != errno.ENXIO:  # only a hole follows
            return
        raise ReadError.expected(
            "size", f"{size:,} bytes that were written", f"{written:,} and holes for the rest"
        ) from error
