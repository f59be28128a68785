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
from ripe_mambaspike.events.recording import EVENT, Events
from ripe_mambaspike.events.source import MAX_TIME, EventSource, Options
from ripe_mambaspike.files import read_regular

FORMAT = "aedat3"
MAGIC = b"#!AER-DAT3.1"
END = b"#!END-HEADER"
MAX_HEADER_BYTES = 1 << 20
MAX_LABELS = 1 << 22  # bytes of the csv beside a recording
PACKET = struct.Struct("<2h6i")  # type, source, size of an event, place of its time, overflow, capacity, number, valid
POLARITY = np.dtype([("data", "<u4"), ("time", "<i4")])
POLARITY_TYPE = 1
SIZES = {"DVS128": (128, 128), "DAVIS128": (128, 128), "DAVIS208": (208, 192), "DAVIS240": (240, 180)}
SIZES |= {"DAVIS346": (346, 260), "DAVIS640": (640, 480), "DAVISHET640": (640, 480)}


@dataclass(frozen=True)
class LabelSpan:
    """A span of a recording and what is seen in it."""

    label: int
    start_us: int
    stop_us: int


def recognizes(head: bytes, path: Path) -> bool:
    return head.startswith(MAGIC)


def open_source(path: Path, options: Options) -> EventSource:
    lines, start = _read_header(path)
    source = EventSource(FORMAT, pieces=lambda: iter(()))
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

    def pieces() -> Iterator[Events]:
        return _packets(path, start, source)

    source.pieces = pieces
    return source


def read_label_spans(path: Path) -> list[LabelSpan]:
    """A csv of class, start and end in µs, as DVS-Gesture has one beside every recording."""
    labels = []
    try:
        text = read_regular(path, MAX_LABELS).decode()
        for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
            if not row or (number == 1 and not row[0].strip().isdigit()):
                continue
            try:
                label, start, stop = (int(cell) for cell in row)
            except ValueError as error:
                raise ReadError(
                    f"{path} line {number} is '{','.join(row)[:60]}'; class,start,end in whole numbers is wanted"
                ) from error
            if not 0 <= start < stop < MAX_TIME:
                raise ReadError(f"{path} line {number} goes from {start} to {stop} µs; a span is wanted")
            labels.append(LabelSpan(label, start, stop))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReadError(f"{path} cannot be read as a csv of labels ({error})") from error
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
                raise ReadError(f"{path} has no {END.decode()} line: its header stops at byte {at}")
            lines.append(line.decode("latin-1").strip())
    raise ReadError(f"{path} has no {END.decode()} line in its first {MAX_HEADER_BYTES} bytes")


def _packets(path: Path, start: int, source: EventSource) -> Iterator[Events]:
    size = path.stat().st_size
    at = start
    with path.open("rb") as file:
        while at < size:
            file.seek(at)
            head = file.read(PACKET.size)
            if len(head) < PACKET.size:
                raise ReadError(f"{path} is cut off at byte {size}: a packet starts at byte {at} and needs 28 bytes")
            kind, _, width, _, overflow, capacity, number, _ = PACKET.unpack(head)
            length = width * number
            if width < 0 or not 0 <= number <= capacity:
                raise ReadError(f"{path} has a damaged packet at byte {at}: {number} events of {width} B")
            if at + PACKET.size + length > size:
                raise ReadError(
                    f"{path} is cut off at byte {size}: the packet at byte {at} says it has "
                    f"{number} events of {width} bytes"
                )
            at += PACKET.size + length
            if kind != POLARITY_TYPE:
                source.count("other_events", number)
                continue
            if width != POLARITY.itemsize:
                raise ReadError(f"{path} byte {at - length}: polarity events of {width} bytes; 8 are wanted")
            yield _polarity(np.frombuffer(file.read(length), POLARITY), overflow, source)


def _polarity(words: np.ndarray, overflow: int, source: EventSource) -> Events:
    data, times = words["data"], words["time"].astype(np.int64)
    valid = data & 1 == 1
    if not valid.all():
        # Filters of the recording software mark events so; they are still in the file, but nobody should see them.
        source.count("invalid_events", int((~valid).sum()))
        data, times = data[valid], times[valid]
    events = np.empty(len(data), EVENT)
    events["x"] = data >> 17
    events["y"] = data >> 2 & 0x7FFF
    events["t"] = times + (overflow << 31)
    events["p"] = data >> 1 & 1
    return events
