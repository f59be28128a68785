"""Opening any recording: the format is found by content, the events are checked on the way.

What is wrong with a file is an error that names file, byte and reason. Times that run back and events outside the
sensor are counted and warned of, and so are times before 0; `strict` refuses them. A file whose events would take far
more memory than the file has bytes is refused: it was packed to do harm, or has holes.
"""

import errno
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ripe_mambaspike.errors import InputError, ReadError, one_line
from ripe_mambaspike.events.formats import aedat2, aedat3, aedat4, arrays, atis, dat, evt2, evt3, evt21, hdf5, text
from ripe_mambaspike.events.recording import Events, Recording, RecordingWarning
from ripe_mambaspike.events.sensors import SIZES, likely_size
from ripe_mambaspike.events.source import (
    FREE_BYTES,
    MAX_EXPANSION,
    MAX_TIME,
    EventSource,
    Options,
    check_expansion,
    empty_events,
)

# Those with a magic first, then those recognized by what they look like.
FORMATS: tuple[ModuleType, ...] = (aedat2, aedat3, aedat4, evt2, evt21, evt3, dat, hdf5, arrays, text, atis)
HEAD_BYTES = 1 << 13
KNOWN_FORMATS = "AEDAT 2.0, 3.1 or 4, EVT 2.0, 2.1 or 3.0, DAT, HDF5, npy, npz, text or 40-bit ATIS is wanted"
OUTSIDE = "outside"
BACKWARDS = "backwards"
NEGATIVE = "negative"
MAX_METADATA = 500  # characters of one entry, of which a header can have any number


def read(
    path: str | Path,
    *,
    sensor_size: tuple[int, int] | None = None,
    time_unit: str | None = None,
    strict: bool = False,
) -> Recording:
    """The whole recording. `sensor_size` (width, height) and `time_unit` say what some formats leave open."""
    opened = open_recording(path, sensor_size=sensor_size, time_unit=time_unit, strict=strict)
    pieces = list(opened.pieces())
    events = np.concatenate(pieces) if pieces else empty_events()
    opened.warn()
    return opened.recording(events)


def read_chunks(
    path: str | Path,
    *,
    events: int = 1_000_000,
    sensor_size: tuple[int, int] | None = None,
    time_unit: str | None = None,
    strict: bool = False,
) -> Iterator[Recording]:
    """The recording in pieces of so many events (the last may have fewer), for one that is larger than memory.

    Where the format does not give the sensor's size, a piece's is the likely one by the events so far. The last piece
    has the warnings and the metadata of the whole.
    """
    if not isinstance(events, int | np.integer) or events < 1:
        raise InputError(f"events is {events!r}; a whole number of at least 1 is wanted")
    opened = open_recording(path, sensor_size=sensor_size, time_unit=time_unit, strict=strict)
    return _chunks(opened, int(events))


def _chunks(opened: "OpenRecording", size: int) -> Iterator[Recording]:
    waiting: list[Events] = []
    count = 0
    for piece in opened.pieces():
        waiting.append(piece)
        count += len(piece)
        while count > size:  # the last one waits until all is known
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
) -> "OpenRecording":
    """The recording, opened but not read."""
    options = Options(sensor_size, time_unit)
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise InputError(f"the path is {path!r}; the name of a file is wanted")
    path = Path(path)
    try:
        head, size = _head(path)
        for module in FORMATS:
            if module.recognizes(head, path):
                return OpenRecording(path, module.open_source(path, options), options, strict, size)
    except ReadError as error:
        error.path = error.path or path
        raise
    except OSError as error:
        raise ReadError(f"{path} cannot be read ({error.strerror or error})") from error
    start = " ".join(f"{byte:02x}" for byte in head[:8])
    raise ReadError(f"{path} is of no known format (it starts with the bytes {start}); {KNOWN_FORMATS}")


class OpenRecording:
    """A recording whose events are read once, piece by piece, and checked on the way."""

    def __init__(self, path: Path, source: EventSource, options: Options, strict: bool, size: int) -> None:
        self.path = path
        self.size = size  # bytes of the file
        self.format = source.format
        self.strict = strict
        self.declared_size = options.sensor_size or source.sensor_size
        self.size_from = "the caller" if options.sensor_size else "the file" if source.sensor_size else "the events"
        self.events = 0  # read so far
        self.trouble: dict[str, int] = {OUTSIDE: 0, BACKWARDS: 0, NEGATIVE: 0}
        self._source = source
        self._last: int | None = None
        if self.declared_size and not (min(self.declared_size) > 0 and max(self.declared_size) <= 65536):
            width, height = self.declared_size
            raise ReadError(f"{path} says its sensor has {width}×{height} pixels; sides from 1 to 65536 are wanted")
        self.corner = (0, 0)  # that the events reach to, where nobody says the sensor's size

    def pieces(self) -> Iterator[Events]:
        """The events in the order of the file. Those outside the sensor are left out, and counted."""
        seen = 0
        try:
            for piece in self._source.pieces():
                seen += len(piece)
                kept = self._check(piece, seen - len(piece))
                self.events += len(kept)
                check_expansion(self.path, seen, self.size)
                if len(kept):
                    yield kept
        except ReadError as error:
            error.path = error.path or self.path
            raise
        except OSError as error:
            raise ReadError(f"{self.path} cannot be read ({error.strerror or error})") from error
        if self.strict and self.warnings:
            raise ReadError(f"{self.path}: {self.warnings[0]}")
        if not self.events:
            why = f" ({self.warnings[0]})" if self.warnings else ""
            raise ReadError(f"{self.path} holds no events{why}; at least one is wanted")

    def recording(self, events: Events) -> Recording:
        """The events as a recording of this sensor."""
        return Recording(events, self.sensor_size, self.format, self.metadata, self.warnings)

    @property
    def sensor_size(self) -> tuple[int, int]:
        """As the file says, or else the likely one by the events read so far."""
        return self.declared_size or likely_size(*self.corner, self._source.likely_sizes or SIZES)

    @property
    def metadata(self) -> dict[str, Any]:
        said = {
            name: one_line(value, MAX_METADATA) if isinstance(value, str) else value
            for name, value in self._source.metadata.items()
        }
        named = self._source.sensor_size  # what was given goes before it
        overruled = {"sensor_size_in_file": list(named)} if named and named != self.declared_size else {}
        return {**said, "sensor_size_from": self.size_from, **overruled}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each kind of trouble met so far."""
        said = []
        if count := self.trouble[OUTSIDE]:
            width, height = self.sensor_size
            said.append(f"{_events(count)} outside the {width}×{height} sensor left out")
        if count := self.trouble[BACKWARDS]:
            said.append(f"times run backwards at {_events(count)}")
        if count := self.trouble[NEGATIVE]:
            said.append(f"times before 0 at {_events(count)}")
        said += [f"{_events(count)} that {why} left out" for why, count in self._source.left_out.items()]
        return tuple(said)

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
            raise ReadError(
                f"{self.path}: t: expected times between −2⁶² and 2⁶² µs, got {low if low <= -MAX_TIME else high}",
                field="t",
                path=self.path,
            )
        if low < 0:
            self.trouble[NEGATIVE] += int(np.count_nonzero(times < 0))
        if self._last is not None and times[0] < self._last:
            back += 1
        self._last = int(times[-1])
        self.trouble[BACKWARDS] += back
        right, bottom = int(piece["x"].max()), int(piece["y"].max())
        if self.declared_size is None:
            self.corner = (max(self.corner[0], right), max(self.corner[1], bottom))
        elif right >= self.declared_size[0] or bottom >= self.declared_size[1]:
            inside = (piece["x"] < self.declared_size[0]) & (piece["y"] < self.declared_size[1])
            self.trouble[OUTSIDE] += len(piece) - int(np.count_nonzero(inside))
            piece = piece[inside]
        if self.strict and self.warnings:
            raise ReadError(f"{self.path}: {self.warnings[0]}, by event {before + len(times)}")
        return piece


def _events(count: int) -> str:
    return f"{count:,} event" if count == 1 else f"{count:,} events"


def _head(path: Path) -> tuple[bytes, int]:
    """The first bytes of a plain file, and how many it has. A pipe is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "no plain file"
            raise ReadError(f"{path} is {kind}; a recording is wanted")
        head = os.read(descriptor, HEAD_BYTES)
        _check_holes(descriptor, facts.st_size, path)
    finally:
        os.close(descriptor)
    if not head:
        raise ReadError(f"{path} is empty (0 bytes); a recording is wanted")
    return head, facts.st_size


def _check_holes(descriptor: int, size: int, path: Path) -> None:
    """A file can have any size without a byte written: its holes would be read as zeros for hours."""
    if size <= FREE_BYTES or not hasattr(os, "SEEK_HOLE"):
        return
    written = at = 0
    try:
        while written * MAX_EXPANSION < size:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            at = os.lseek(descriptor, start, os.SEEK_HOLE)
            written += at - start
    except OSError as error:
        if error.errno != errno.ENXIO:  # which says that nothing but a hole comes
            return
        raise ReadError(
            f"{path}: size: expected bytes that were written, got {written:,} of {size:,} and holes for the rest",
            field="size",
            path=path,
        ) from error
