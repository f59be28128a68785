"""AEDAT 2.0 (jAER): DVS128 (CIFAR10-DVS, MNIST-DVS) and the DAVIS cameras.

Lines that start with `#`, then pairs of big-endian 32-bit numbers: an address and a time in µs. What the address means
depends on the camera, named by the header's `AEChip` line; without one it is a DVS128.

Coordinates and polarity are the bits of the address, unchanged. jAER shows them rotated by 180°, and published readers
of CIFAR10-DVS disagree about flips, so no flip or rotation is applied here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError, ReadError
from ripe_mambaspike.events.recording import Events, Recording, pack_events
from ripe_mambaspike.events.registry import register_chunk_encoder, register_format, register_writer, starts_with
from ripe_mambaspike.events.source import EventSource, ReadOptions, WrappingClock, decode_blocks

MAGIC = b"#!AER-DAT2"
WORD = np.dtype([("address", ">u4"), ("time", ">i4")])
MAX_HEADER_BYTES = 1 << 24
MAX_LINES = 100_000  # maximum length of the header, in which jAER stores its settings
END = "#End Of ASCII Header"
PERIOD = 1 << 32
CHIPS = {  # by the end of the AEChip's class name
    "DVS128": (128, 128),
    "DAVIS128": (128, 128),
    "DAVIS208": (208, 192),
    "DAVIS240": (240, 180),
    "DAVIS346": (346, 260),
    "DAVIS640": (640, 480),
}


@dataclass(frozen=True)
class AddressLayout:
    """Bit layout of an address; an address with any `other` bit set is not a polarity event."""

    x: tuple[int, int]  # (shift, mask)
    y: tuple[int, int]
    polarity: int
    other: int


DVS = AddressLayout(x=(1, 0x7F), y=(8, 0x7F), polarity=0, other=1 << 15)
DAVIS = AddressLayout(x=(12, 0x3FF), y=(22, 0x1FF), polarity=11, other=1 << 31 | 1 << 10)


@register_format("aedat2", title="AEDAT 2.0", recognizes=starts_with(MAGIC))
def open_aedat2(path: Path, options: ReadOptions) -> EventSource:
    lines, start = _read_header(path)
    chip = _value(lines, "AEChip") or ""
    size, layout = _camera(chip)
    base = _value(lines, "TimeBase") or "0"
    if not re.fullmatch(r"-?\d{1,18}", base):
        raise ReadError.expected("TimeBase", "an int", repr(base[:40]))
    declared = re.fullmatch(r"(\d{1,9})x(\d{1,9})", _value(lines, "SensorSize") or "")
    metadata = {"camera": chip.rsplit(".", 1)[-1] or "DVS128 (no AEChip in the header)"}
    if created := _value(lines, "created"):
        metadata["created"] = created

    def read_events(source: EventSource) -> Iterator[Events]:
        decode = partial(_decode, layout=layout, source=source)
        return decode_blocks(path, start, WORD, decode, WrappingClock(PERIOD, offset=int(base)))

    return EventSource("aedat2", read_events, (int(declared[1]), int(declared[2])) if declared else size, metadata)


def _read_header(path: Path) -> tuple[list[str], int]:
    """The lines that start with `#`, and the byte where the events start.

    An event may also start with the byte `#`, so a line with unprintable characters does not belong to the header.
    """
    lines: list[str] = []
    start = 0
    with path.open("rb") as file:
        while (line := file.readline(MAX_HEADER_BYTES)).startswith(b"#"):
            text = line.decode("latin-1").rstrip("\r\n")
            if not text.replace("\t", " ").isprintable():
                break
            start += len(line)
            if not line.endswith(b"\n") or start > MAX_HEADER_BYTES:
                raise ReadError.expected("header", "a new line", f"none up to byte {start}")
            lines.append(text)
            if text.startswith(END):
                break
            if len(lines) > MAX_LINES:
                raise ReadError.expected("header", f"at most {MAX_LINES:,} lines", "more")
    return lines, start


def _decode(
    words: NDArray[np.void], clock: WrappingClock, layout: AddressLayout, source: EventSource
) -> tuple[Events, WrappingClock]:
    """Decode a block; other kinds of events are counted in the source's metadata."""
    address = words["address"].astype(np.uint32)
    times, clock = clock.unwrap(words["time"].astype(np.int64))
    other = (address & np.uint32(layout.other)) != 0
    if other.any():
        source.count("other_words", np.count_nonzero(other))
        address, times = address[~other], times[~other]
    x, y = address >> layout.x[0] & layout.x[1], address >> layout.y[0] & layout.y[1]
    return pack_events(x, y, times, address >> layout.polarity & 1), clock


@register_writer(".aedat")
def encode_aedat2(recording: Recording) -> Iterator[bytes]:
    yield Aedat2Encoder(recording.sensor_size, recording.first_us).encode(recording.events)


@register_chunk_encoder(".aedat")
class Aedat2Encoder:
    """Times are stored modulo 2³²; the rest goes to a `TimeBase` header line, which other readers ignore."""

    def __init__(self, sensor_size: tuple[int, int], first_us: int) -> None:
        width, height = self._size = sensor_size
        if width <= 128 and height <= 128:
            self._chip, self._layout = "ch.unizh.ini.jaer.chip.retina.DVS128", DVS
        elif width <= 1024 and height <= 512:
            self._chip, self._layout = f"eu.seebetter.ini.chips.davis.{_davis(width, height)}", DAVIS
        else:
            raise InputError.expected("sensor_size", "at most 1024×512 for AEDAT 2.0", f"{width}×{height}")
        self._last: int | None = None

    def encode(self, events: Events) -> bytes:
        times = events["t"].astype(np.int64)
        if not len(times):
            return b""
        steps = np.diff(times, prepend=times[0] if self._last is None else self._last)
        if np.abs(steps).max(initial=0) >= PERIOD // 2:
            wanted = "events less than 35 minutes apart for AEDAT 2.0 (32-bit times)"
            raise InputError.expected("t", wanted, "a longer gap")
        low = (times + PERIOD // 2) % PERIOD - PERIOD // 2
        header = self._header(int(times[0] - low[0])) if self._last is None else b""
        self._last = int(times[-1])
        words, layout = np.empty(len(events), WORD), self._layout
        columns = {name: events[name].astype(np.uint32) for name in "xyp"}
        words["address"] = columns["x"] << layout.x[0] | columns["y"] << layout.y[0] | columns["p"] << layout.polarity
        words["time"] = low
        return header + words.tobytes()

    def new_header(self) -> bytes | None:
        return None

    def _header(self, base: int) -> bytes:
        created = datetime.fromtimestamp(0, UTC).strftime("%a %b %d %H:%M:%S %Z %Y")
        return (
            "#!AER-DAT2.0\r\n# This is a raw AE data file - do not edit\r\n"
            "# Data format is int32 address, int32 timestamp (8 bytes total), repeated for each event\r\n"
            f"# Timestamps tick is 1 us\r\n# created {created}\r\n# AEChip: {self._chip}\r\n"
            f"# SensorSize: {self._size[0]}x{self._size[1]}\r\n# TimeBase: {base}\r\n{END}\r\n"
        ).encode()


def _davis(width: int, height: int) -> str:
    """The smallest DAVIS that contains the sensor; the exact size is in the `SensorSize` line."""
    fits = (name for name, size in CHIPS.items() if name != "DVS128" and width <= size[0] and height <= size[1])
    return next(fits, "DAVIS640")


def _value(lines: list[str], name: str) -> str | None:
    """The value of the header line `name`."""
    for line in lines:
        if match := re.match(rf"#\s*{name}:?\s+(.+)", line):
            return match[1].strip()
    return None


def _camera(chip: str) -> tuple[tuple[int, int], AddressLayout]:
    """(sensor size, layout) of the AEChip named; without one a DVS128."""
    name = chip.rsplit(".", 1)[-1].upper().replace("_", "")
    for known, size in CHIPS.items():
        if name.startswith(known):
            return size, DVS if known == "DVS128" else DAVIS
    if not name:
        return CHIPS["DVS128"], DVS
    raise ReadError.expected("AEChip", f"one of {', '.join(CHIPS)}", repr(chip[:60]))
