"""AEDAT 3.1 (cAER): DVS-Gesture.

Header lines up to `#!END-HEADER`, then packets: 28 bytes that say what is in it and how much, then the events.
Polarity events are 8 bytes: valid in bit 0, polarity in bit 1, y in bits 2–16, x in bits 17–31; then 31 bits of time,
continued by the packet's overflow count. Everything is little-endian; the origin is at the top left.
"""

import csv
import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.recording import Events, pack_events
from ripe_mambaspike.events.registry import register_format, starts_with
from ripe_mambaspike.events.source import MAX_TIME, EventSource, ReadOptions
from ripe_mambaspike.files import read_regular

MAGIC = b"#!AER-DAT3.1"
END = b"#!END-HEADER"
MAX_HEADER_BYTES = 1 << 20
MAX_LABEL_BYTES = 1 << 22  # bytes of the csv beside a recording
PACKET = struct.Struct("<2h6i")  # type, source, size of an event, place of its time, overflow, capacity, number, valid
POLARITY = np.dtype([("data", "<u4"), ("time", "<i4")])
POLARITY_TYPE = 1
SIZES = {"DVS128": (128, 128), "DAVIS128": (128, 128), "DAVIS208": (208, 192), "DAVIS240": (240, 180)}
SIZES |= {"DAVIS346": (346, 260), "DAVIS640": (640, 480), "DAVISHET640": (640, 480)}


@dataclass(frozen=True)
class LabelSpan:
    """A span of a recording and its label."""

    label: int
    start_us: int
    stop_us: int


@register_format("aedat3", title="AEDAT 3.1", recognizes=starts_with(MAGIC))
def open_aedat3(path: Path, options: ReadOptions) -> EventSource:
    lines, start = _read_header(path)
    source = EventSource("aedat3", lambda source: _packets(path, start, source))
    for line in lines:
        if match := re.match(r"#\s*Source \d+: *(\S+)", line):
            source.metadata["camera"] = match[1]
            name = match[1].upper()
            source.sensor_size = next((size for chip, size in SIZES.items() if name.startswith(chip)), None)
        elif match := re.match(r"#\s*Start-Time: *(.+)", line):
            source.metadata["created"] = match[1]
    beside = path.with_name(f"{path.stem}_labels.csv")
    if beside.is_file():
        source.metadata["labels"] = [vars(label) for label in read_label_spans(beside)]
    return source


def read_label_spans(path: Path) -> list[LabelSpan]:
    """A csv of class, start and end in µs, as DVS-Gesture has one beside every recording."""
    labels = []
    try:
        text = read_regular(path, MAX_LABEL_BYTES).decode()
        for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
            if not row or (number == 1 and not row[0].strip().isdigit()):
                continue
            try:
                label, start, stop = (int(cell) for cell in row)
            except ValueError as error:
                raise ReadError.expected(
                    f"line {number}", "class,start,end in integers", repr(",".join(row)[:60]), path=path
                ) from error
            if not 0 <= start < stop < MAX_TIME:
                raise ReadError.expected(f"line {number}", "a start before the end", f"{start} to {stop} µs", path=path)
            labels.append(LabelSpan(label, start, stop))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReadError.expected("labels", "a readable csv of class, start and end", str(error), path=path) from error
    return labels


def _read_header(path: Path) -> tuple[list[str], int]:
    lines: list[str] = []
    with path.open("rb") as file:
        while file.tell() < MAX_HEADER_BYTES:
            at = file.tell()
            line = file.readline(MAX_HEADER_BYTES)
            if line.startswith(END):
                return lines, file.tell()
            if not line.startswith(b"#") or not line.endswith(b"\n"):
                raise ReadError.expected("header", f"a line {END.decode()}", f"an end at byte {at}")
            lines.append(line.decode("latin-1").strip())
    raise ReadError.expected("header", f"a line {END.decode()}", f"none in the first {MAX_HEADER_BYTES} bytes")


def _packets(path: Path, start: int, source: EventSource) -> Iterator[Events]:
    size = path.stat().st_size
    at = start
    with path.open("rb") as file:
        while at < size:
            file.seek(at)
            head = file.read(PACKET.size)
            if len(head) < PACKET.size:
                raise ReadError.expected("size", f"28 bytes of a packet at byte {at}", f"a file cut off at byte {size}")
            kind, _, width, _, overflow, capacity, number, _ = PACKET.unpack(head)
            length = width * number
            if width < 0 or not 0 <= number <= capacity:
                raise ReadError.expected(
                    "packet", f"at most {capacity} events at byte {at}", f"{number} events of {width} bytes"
                )
            if at + PACKET.size + length > size:
                raise ReadError.expected(
                    "size", f"{number} events of {width} bytes at byte {at}", f"a file cut off at byte {size}"
                )
            if kind == POLARITY_TYPE and width != POLARITY.itemsize:
                raise ReadError.expected("packet", f"events of 8 bytes at byte {at}", f"{width} bytes")
            at += PACKET.size + length
            if kind != POLARITY_TYPE:
                source.count("other_events", number)
                continue
            yield _polarity(np.frombuffer(file.read(length), POLARITY), overflow, source)


def _polarity(words: np.ndarray, overflow: int, source: EventSource) -> Events:
    data, times = words["data"], words["time"].astype(np.int64)
    valid = data & 1 == 1
    if not valid.all():
        # Filters of the recording software mark events as invalid; they are still in the file.
        source.count("invalid_events", int((~valid).sum()))
        data, times = data[valid], times[valid]
    return pack_events(data >> 17, data >> 2 & 0x7FFF, times + (overflow << 31), data >> 1 & 1)
