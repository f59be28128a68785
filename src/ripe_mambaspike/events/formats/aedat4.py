"""AEDAT4 (iniVation DV), by the package `aedat`: DailyDVS-200.

A line, a header with its length in front, then packets: stream, length, content. The package believes every length, up
to 4 GiB, and ends the program when that much memory is not there: so the lengths are checked before.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.recording import EVENT, Events
from ripe_mambaspike.events.source import Options, Source

FORMAT = "aedat4"
MAGIC = b"#!AER-DAT4.0"
START = len(MAGIC) + 2  # the byte after the line


def recognises(head: bytes, path: Path) -> bool:
    return head.startswith(MAGIC)


def open_source(path: Path, options: Options) -> Source:
    try:
        import aedat
    except ImportError as error:
        raise ReadError(f"{path} is AEDAT4, which needs the package aedat; install ripe-mambaspike[data]") from error
    check_lengths(path)
    with _blaming(path):
        decoder = aedat.Decoder(path)
        streams = {number: stream for number, stream in decoder.id_to_stream().items() if stream["type"] == "events"}
    if not streams:
        raise ReadError(f"{path} has no stream of events")
    number = min(streams)
    source = Source(FORMAT, lambda: iter(()), (int(streams[number]["width"]), int(streams[number]["height"])))
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
            elif packet["stream_id"] != number:
                source.leave_out(len(packet["events"]), "were of another stream")
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
        table = _table_position(file.read(length))
        at = START + 4 + length
        while at < size and at != table:
            file.seek(at + 4)
            length = int.from_bytes(file.read(4), "little")
            if at + 8 + length > size:
                raise ReadError(
                    f"{path} is damaged or cut off at byte {size}: the packet at byte {at} says it has {length} bytes"
                )
            at += 8 + length


def _table_position(header: bytes) -> int:
    """Where the table after the packets begins: the second field of a flatbuffer; −1 when there is none."""
    try:
        root = struct.unpack_from("<I", header)[0]
        fields = root - struct.unpack_from("<i", header, root)[0]
        (place,) = struct.unpack_from("<H", header, fields + 6) if fields >= 0 else (0,)
        return struct.unpack_from("<q", header, root + place)[0] if place else -1
    except struct.error:  # the package will say what is wrong with it
        return -1


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
