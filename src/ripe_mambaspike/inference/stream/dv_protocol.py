"""The bytes of a network stream of `dv-processing`: what its header says, and the events of its packets.

Header and packets are flatbuffers, each prefixed by its length. Every offset and length is checked before it is used.
Compressed streams are refused.
"""

import re
import struct
from collections.abc import Iterator

import numpy as np

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.recording import LIMITS, Events, is_size, pack_events

EVENTS = b"EVTS"
HEADER_ID = b"IOHE"
RECORD = np.dtype(
    {
        "names": ["t", "x", "y", "p"],
        "formats": ["<i8", "<i2", "<i2", "u1"],
        "offsets": [0, 8, 10, 12],
        "itemsize": 16,
    }
)
MAX_HEADER_BYTES = 1 << 20
MAX_PACKET_BYTES = 1 << 28
COMPRESSIONS = ("none", "LZ4", "LZ4 (high)", "Zstandard", "Zstandard (high)")


class DvStreamReader:
    """Chunks of bytes → events. `size` is known once the header has come; `outside` counts events off the sensor."""

    def __init__(self) -> None:
        self.size: tuple[int, int] | None = None
        self.outside = 0
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a packet that has not come completely."""
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[Events | None]:
        """The events of each packet that these bytes complete; None for the header. Raises ReadError for damage."""
        self._held += data
        if self.size is None:
            header = self._take_prefixed()
            if header is None:
                return
            self.size = parse_dv_header(header)
            yield None
        while (packet := self._take_packet()) is not None:
            yield self._convert(packet)

    def _take_prefixed(self) -> bytes | None:
        held = self._held
        if len(held) >= 12 and held[8:12] != HEADER_ID:
            raise ReadError.expected("header", f"the identifier {HEADER_ID.decode()}", repr(bytes(held[8:12])))
        if len(held) < 12:
            return None
        length = int.from_bytes(held[:4], "little")
        if length > MAX_HEADER_BYTES:
            raise ReadError.expected("header", f"at most {MAX_HEADER_BYTES:,} bytes", f"{length:,}")
        if len(held) < 4 + length:
            return None
        header = bytes(held[4 : 4 + length])
        del held[: 4 + length]
        return header

    def _take_packet(self) -> bytes | None:
        held = self._held
        if len(held) < 8:
            return None
        length = int.from_bytes(held[4:8], "little")
        if length > MAX_PACKET_BYTES:
            raise ReadError.expected("packet", f"at most {MAX_PACKET_BYTES:,} bytes", f"{length:,}")
        if len(held) < 8 + length:
            return None
        packet = bytes(held[8 : 8 + length])
        del held[: 8 + length]
        return packet

    def _convert(self, packet: bytes) -> Events:
        assert self.size is not None
        records, (width, height) = parse_event_packet(packet), self.size
        x, y, t = records["x"], records["y"], records["t"]
        low, high = LIMITS["t"]
        kept = (x >= 0) & (x < width) & (y >= 0) & (y < height) & (t >= low) & (t <= high)
        if not kept.all():
            self.outside += len(records) - int(np.count_nonzero(kept))
            records = records[kept]
        return pack_events(records["x"], records["y"], records["t"], records["p"] > 0)


def parse_dv_header(header: bytes) -> tuple[int, int]:
    """The sensor's size, of a header of one stream of uncompressed events; raises ReadError."""
    try:
        root = struct.unpack_from("<I", header)[0]
        compression_at, text_at = _field(header, root, 0), _field(header, root, 2)
        compression = 0 if compression_at is None else struct.unpack_from("<i", header, compression_at)[0]
        if text_at is None:
            raise struct.error("no description")
        start = text_at + struct.unpack_from("<I", header, text_at)[0]
        length = struct.unpack_from("<I", header, start)[0]
        text = header[start + 4 : start + 4 + length].decode("utf-8")
        if len(header) < start + 4 + length:
            raise struct.error("the description is cut off")
    except (struct.error, UnicodeDecodeError) as error:
        raise ReadError.expected("header", "a description of the stream", f"damage ({error})") from error
    if compression:
        known = COMPRESSIONS[compression] if 0 < compression < len(COMPRESSIONS) else f"kind {compression}"
        hint = "set the stream's compression to NONE in its writer"
        raise ReadError.expected("compression", "none", known, hint=hint)
    values = dict(re.findall(r'<attr key="(typeIdentifier|sizeX|sizeY)" type="\w+">([^<]{0,20})</attr>', text))
    if values.get("typeIdentifier") != EVENTS.decode():
        raise ReadError.expected("stream", "one of events (EVTS)", repr(values.get("typeIdentifier")))
    sides = [values.get(name, "") for name in ("sizeX", "sizeY")]
    size = tuple(int(side) if side.isascii() and side.isdecimal() else 0 for side in sides)
    if not is_size(size):
        raise ReadError.expected("sensor_size", "a width and a height", "×".join(sides))
    return size[0], size[1]


def parse_event_packet(packet: bytes) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    """The records of a packet of events; raises ReadError."""
    try:
        (length,) = struct.unpack_from("<I", packet)
        body = packet[4:]
        if length != len(body) or body[4:8] != EVENTS:
            raise struct.error(f"{length} bytes of {body[4:8]!r} in {len(body)}")
        at = _field(body, struct.unpack_from("<I", body)[0], 0)
        if at is None:
            return np.empty(0, RECORD)
        start = at + struct.unpack_from("<I", body, at)[0]
        (count,) = struct.unpack_from("<I", body, start)
        if start + 4 + count * RECORD.itemsize > len(body):
            raise struct.error(f"{count} events in {len(body)} bytes")
    except struct.error as error:
        raise ReadError.expected("packet", "a packet of events", f"damage ({error})") from error
    return np.frombuffer(body, RECORD, count, start + 4)


def _field(table: bytes, root: int, index: int) -> int | None:
    """Where a field of the flatbuffer's root begins; None for one that is absent."""
    fields = root - int(struct.unpack_from("<i", table, root)[0])
    if fields < 0:
        raise struct.error("a table before the start")
    (length,) = struct.unpack_from("<H", table, fields)
    if length < 6 + 2 * index:
        return None
    (offset,) = struct.unpack_from("<H", table, fields + 4 + 2 * index)
    return root + offset if offset else None
