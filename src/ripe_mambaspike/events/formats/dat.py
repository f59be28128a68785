"""Prophesee DAT (N-Cars, GEN1, 1MPX).

Lines that start with `%`, two bytes (type and size of an event), then 32 bits of time and 32 of address an event:
x in bits 0–13, y in bits 14–27, polarity in bit 28. A file without the lines, with the two bytes or without, is read if
the caller names the format and gives the sensor's size.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.formats.prophesee import PropheseeHeader, open_prophesee, read_prophesee_header
from ripe_mambaspike.events.recording import Events, pack_events
from ripe_mambaspike.events.registry import register_format
from ripe_mambaspike.events.source import EventSource, ReadOptions, WrappingClock, decode_blocks

WORD = np.dtype([("time", "<u4"), ("address", "<u4")])
EVENT_TYPES = (0x00, 0x0C)  # 2D events and contrast-detection events
PERIOD = 1 << 32
LIKELY_SIZES = ((304, 240), (640, 480), (1280, 720))


def _recognizes(head: bytes, path: Path) -> bool:
    if not head.startswith(b"% "):
        return False
    header = read_prophesee_header(path)
    return header.encoding is None and ("data" in header.values or "version" in header.values)


@register_format("dat", title="DAT", recognizes=_recognizes, headerless=True)
def open_dat(path: Path, options: ReadOptions) -> EventSource:
    header = open_prophesee(path, options)
    start = header.start + 2 if header.values else _skip_pair(path)
    if header.values:
        _check_pair(path, header)
    return EventSource(
        "dat",
        lambda source: decode_blocks(path, start, WORD, _decode, WrappingClock(PERIOD)),
        header.sensor_size,
        header.metadata,
        LIKELY_SIZES,
    )


def _skip_pair(path: Path) -> int:
    """Where the events of a file without a header start: after type and size, where these were kept."""
    with path.open("rb") as file:
        pair = file.read(2)
    kept = len(pair) == 2 and pair[0] in EVENT_TYPES and pair[1] == WORD.itemsize
    return 2 if kept and path.stat().st_size % WORD.itemsize == 2 else 0


def _check_pair(path: Path, header: PropheseeHeader) -> None:
    """Raise unless type and size of an event follow the header."""
    with path.open("rb") as file:
        file.seek(header.start)
        pair = file.read(2)
    if len(pair) < 2:
        raise ReadError.expected(
            "size", "two bytes of type and size", f"a file cut off at byte {header.start + len(pair)}"
        )
    if pair[0] not in EVENT_TYPES or pair[1] != WORD.itemsize:
        raise ReadError.expected(
            "header",
            f"events of type {' or '.join(map(str, EVENT_TYPES))} and {WORD.itemsize} bytes",
            f"type {pair[0]} and {pair[1]} bytes (byte {header.start})",
        )


def _decode(words: NDArray[np.void], clock: WrappingClock) -> tuple[Events, WrappingClock]:
    address = words["address"]
    times, clock = clock.unwrap(words["time"].astype(np.int64))
    return pack_events(address & 0x3FFF, address >> 14 & 0x3FFF, times, address >> 28 & 1), clock
