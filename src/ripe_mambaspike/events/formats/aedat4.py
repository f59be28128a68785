"""AEDAT4 (iniVation DV), by the package `aedat`: DailyDVS-200.

A line, a header with its length in front, then packets: stream, length, content. The package believes every length, up
to 4 GiB, and aborts its process on some damage: so the lengths and the header are checked before, and it runs in a
process of its own (`events/isolated.py`).
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events import isolated as isolated
from ripe_mambaspike.events.recording import EVENT, Events
from ripe_mambaspike.events.source import EventSource, Options, empty_events

FORMAT = "aedat4"
MAGIC = b"#!AER-DAT4.0"
START = len(MAGIC) + 2  # the byte after the line
MAX_HEADER_BYTES = 1 << 24  # bytes


def recognizes(head: bytes, path: Path) -> bool:
    return head.startswith(MAGIC)


def open_source(path: Path, options: Options) -> EventSource:
    return isolated.open_source(FORMAT, path, options)


def load(path: Path) -> Any:
    """The package."""
    try:
        import aedat
    except ImportError as error:
        raise ReadError(f"{path} is AEDAT4, which needs the package aedat; install ripe-mambaspike[data]") from error
    return aedat


def open_here(path: Path, options: Options) -> EventSource:
    """The source, in this very process, which the package may end."""
    aedat = load(path)
    check_lengths(path)
    with _blaming(path):
        decoder = aedat.Decoder(path)
        streams = {number: stream for number, stream in decoder.id_to_stream().items() if stream["type"] == "events"}
    if not streams:
        raise ReadError(f"{path} has no stream of events")
    number = min(streams)
    source = EventSource(FORMAT, lambda: iter(()), (int(streams[number]["width"]), int(streams[number]["height"])))
    if len(streams) > 1:
        source.metadata["streams_of_events"] = len(streams)

    def pieces() -> Iterator[Events]:
        packets = iter(decoder)
        while True:
            with _blaming(path):
                packet = next(packets, None)
            if packet is None:
                return
            if "events" not in packet:
                source.count("other_packets", 1)
                yield empty_events()
            elif packet["stream_id"] != number:
                source.leave_out(len(packet["events"]), "were of another stream")
                yield empty_events()
            else:
                yield _events(packet["events"])

    source.pieces = pieces
    return source


def check_lengths(path: Path) -> None:
    """Every packet ends in the file, and the last at its end or where the table of packets begins."""
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        file.seek(START)
        length = int.from_bytes(file.read(4), "little")
        if START + 4 + length > size:
            raise ReadError(f"{path} is damaged or cut off at byte {size}: it says its header has {length} bytes")
        if length > MAX_HEADER_BYTES:
            raise ReadError(
                f"{path}: header: expected at most {MAX_HEADER_BYTES} bytes, got {length}", field="header", path=path
            )
        table = check_header(file.read(length), path)
        at = START + 4 + length
        while at < size and at != table:
            file.seek(at + 4)
            length = int.from_bytes(file.read(4), "little")
            if at + 8 + length > size:
                raise ReadError(
                    f"{path} is damaged or cut off at byte {size}: the packet at byte {at} says it has {length} bytes"
                )
            at += 8 + length


def check_header(header: bytes, path: Path) -> int:
    """Where the table after the packets begins, −1 when there is none. The description of the streams has to be text.

    The header is a flatbuffer: the first field says how packets are compressed, the second where the table is, the
    third is the description, as XML.
    """
    try:
        root = struct.unpack_from("<I", header)[0]
        fields = root - struct.unpack_from("<i", header, root)[0]
        (length,) = struct.unpack_from("<H", header, fields) if fields >= 0 else (0,)
        if length < 10:
            raise struct.error("too few fields")
        table_at, text_at = struct.unpack_from("<2H", header, fields + 6)
        table = struct.unpack_from("<q", header, root + table_at)[0] if table_at else -1
        place = root + text_at
        place += struct.unpack_from("<I", header, place)[0]
        (length,) = struct.unpack_from("<I", header, place)
        text = header[place + 4 : place + 4 + length]
        if not text_at or len(text) < length:
            raise struct.error("the description is not in it")
        text.decode("utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise ReadError(
            f"{path} is damaged or cut off: header: expected a description of the streams as text, got one that "
            f"cannot be read ({error})",
            field="header",
            path=path,
        ) from error
    return table


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Whatever the package raises is the file's fault; a panic of its Rust code is no `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ReadError(f"{path} is damaged or cut off: {str(error)[:200]}") from error


def _events(packet: np.ndarray) -> Events:
    events = np.empty(len(packet), EVENT)
    for name, theirs in (("x", "x"), ("y", "y"), ("t", "t"), ("p", "on")):
        events[name] = packet[theirs]
    return events
