"""AEDAT4 (iniVation DV), by the package `aedat`: DailyDVS-200.

A magic line, a header prefixed by its length, then packets: stream, length, content. The package trusts every length,
up to 4 GiB, and aborts the process on some damaged files. So lengths and header are checked first, and the package runs
in a separate process (`events/isolated.py`).
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.recording import Events, pack_events
from ripe_mambaspike.events.registry import register_format, starts_with
from ripe_mambaspike.events.source import EventSource, ReadOptions, empty_events

MAGIC = b"#!AER-DAT4.0"
START = len(MAGIC) + 2  # the byte after the line
MAX_HEADER_BYTES = 1 << 24  # bytes


@register_format("aedat4", title="AEDAT 4", recognizes=starts_with(MAGIC), isolated=True, packages=("aedat",))
def open_aedat4(path: Path, options: ReadOptions) -> EventSource:
    import aedat

    check_lengths(path)
    with _damaged_file():
        decoder = aedat.Decoder(path)
        streams = {number: stream for number, stream in decoder.id_to_stream().items() if stream["type"] == "events"}
    if not streams:
        raise ReadError.expected("streams", "a stream of events", "none")
    number = min(streams)

    def read_events(source: EventSource) -> Iterator[Events]:
        packets = iter(decoder)
        while True:
            with _damaged_file():
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
                yield pack_events(*(packet["events"][name] for name in ("x", "y", "t", "on")))

    size = int(streams[number]["width"]), int(streams[number]["height"])
    return EventSource("aedat4", read_events, size, {"streams_of_events": len(streams)} if len(streams) > 1 else {})


def check_lengths(path: Path) -> None:
    """Check that every packet ends inside the file, the last one at its end or at the table of packets."""
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        file.seek(START)
        length = int.from_bytes(file.read(4), "little")
        if START + 4 + length > size:
            raise ReadError.expected("size", f"a header of {length} bytes", f"a file cut off at byte {size}")
        if length > MAX_HEADER_BYTES:
            raise ReadError.expected("header", f"at most {MAX_HEADER_BYTES} bytes", length)
        table = check_header(file.read(length))
        at = START + 4 + length
        while at < size and at != table:
            file.seek(at + 4)
            length = int.from_bytes(file.read(4), "little")
            if at + 8 + length > size:
                raise ReadError.expected(
                    "size", f"a packet of {length} bytes at byte {at}", f"a file cut off at byte {size}"
                )
            at += 8 + length


def check_header(header: bytes) -> int:
    """Offset of the table after the packets, −1 if there is none. The description of the streams must be text.

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
        offset = root + text_at
        offset += struct.unpack_from("<I", header, offset)[0]
        (length,) = struct.unpack_from("<I", header, offset)
        text = header[offset + 4 : offset + 4 + length]
        if not text_at or len(text) < length:
            raise struct.error("the description is not in it")
        text.decode("utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise ReadError.expected("header", "a description of the streams as text", f"damage ({error})") from error
    return table


@contextmanager
def _damaged_file() -> Iterator[None]:
    """Turn whatever the package raises into a ReadError; a panic of its Rust code is not an `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ReadError.expected("packets", "whole packets", f"damage ({str(error)[:200]})") from error
