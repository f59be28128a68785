"""The packet format that `ripe stream` reads from a pipe, a connection or a UDP port.

A packet is a header of 16 bytes and `count` records of 13 bytes, all little-endian:

    header  magic "REVT", version u16 = 1, width u16, height u16, zero u16, count u32
    record  t i64 (µs), x u16, y u16, p u8 (0 OFF, 1 ON)

A datagram is exactly one packet; in a pipe packets follow each other without a gap. A damaged packet ends at the next
magic, so that it takes no other packet with it. Datagrams may be numbered: their version is 2, and instead of the zero
they have a number that grows by one from packet to packet, modulo 2¹⁶.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import EVENT, LIMITS, Events

MAGIC = b"REVT"
VERSION, NUMBERED_VERSION = 1, 2
MAX_SEQUENCE = (1 << 16) - 1
HEADER = struct.Struct("<4sHHHHI")
RECORD = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
MAX_PACKET_EVENTS = 1 << 20  # a larger count is damage
SHARED_HEADER_BYTES = HEADER.size - 4  # the header without the count
FIRST_BLOCK, MAX_BLOCK = 256, 1 << 14  # records checked at a time; few at first, since damage usually shows early
MAX_RESCANS = 16  # of a byte, on average, as part of another packet
MAX_CREDIT = MAX_RESCANS * (HEADER.size + MAX_PACKET_EVENTS * RECORD.itemsize)  # bytes: the largest packet so often
DATAGRAM_EVENTS = (65507 - HEADER.size) // RECORD.itemsize


class EventPacket(NamedTuple):
    """Events and the size of their sensor, (width, height); `sequence` is the number of a numbered datagram."""

    sensor_size: tuple[int, int]
    events: Events
    sequence: int | None = None


class InvalidPacket(NamedTuple):
    """Bytes that are not a packet, and why."""

    reason: str


def write_packet(events: Events, sensor_size: tuple[int, int], sequence: int | None = None) -> bytes:
    """A packet of these events; with a `sequence` number for a datagram alone."""
    width, height = sensor_size
    if not (1 <= width <= 65535 and 1 <= height <= 65535):
        raise InputError.expected("sensor_size", "sides from 1 to 65535", sensor_size)
    if len(events) > MAX_PACKET_EVENTS:
        raise InputError.expected("events", f"at most {MAX_PACKET_EVENTS:,}", f"{len(events):,}")
    records = np.empty(len(events), RECORD)
    for name in RECORD.names or ():
        records[name] = events[name]
    if sequence is None:
        return HEADER.pack(MAGIC, VERSION, width, height, 0, len(events)) + records.tobytes()
    if not 0 <= sequence <= MAX_SEQUENCE:
        raise InputError.expected("sequence", f"0 to {MAX_SEQUENCE}", sequence)
    return HEADER.pack(MAGIC, NUMBERED_VERSION, width, height, sequence, len(events)) + records.tobytes()


def read_packet(data: bytes) -> EventPacket | InvalidPacket:
    """Decode bytes that are exactly one packet, numbered or not."""
    size = _packet_size(data, numbered=True)
    if isinstance(size, InvalidPacket):
        return size
    if size != len(data):
        return InvalidPacket(f"a packet of {size} bytes came as {len(data)}")
    return _checked(data)


class PacketReader:
    """Extracts packets from chunks of any size; after damage it searches for the next magic number.

    A packet is checked while it comes: a wrong count, or a packet that was cut off, shows by an impossible record or by
    the header of the next packet, and is not waited for. The bytes it covered are then scanned again, as part of the
    packet whose header comes next. Headers nested in headers could make that quadratic in the bytes, so a credit that
    grows with the bytes bounds it; when it is used up, all bytes that were found good before are skipped.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._lost = False  # inside damage that has been reported
        self._checked = HEADER.size  # bytes of the first packet that have been validated
        self._base = 0  # bytes of the stream before the buffer
        self._reach = 0  # bytes of the stream that have been validated as part of any packet
        self._credit = 0  # bytes that may still be scanned again

    def feed(self, data: bytes) -> Iterator[EventPacket | InvalidPacket]:
        """The packets that these bytes complete."""
        held = self._held
        held += data
        self._credit = min(self._credit + MAX_RESCANS * len(data), MAX_CREDIT)
        while len(held) >= HEADER.size:
            size = _packet_size(bytes(held[: HEADER.size]))
            if isinstance(size, InvalidPacket):
                if not self._lost:
                    yield size
                self._skip()
            elif (damage := self._check(size)) is not None:
                self._skip()
                yield damage
            elif len(held) < size:
                return
            else:
                packet = bytes(held[:size])
                self._drop(size)
                self._lost = False
                yield _packet(packet)

    def end(self) -> Iterator[EventPacket | InvalidPacket]:
        """The packets left at the end of the stream; an incomplete packet may hide others."""
        while len(self._held) > 0:
            if not self._lost:
                yield InvalidPacket(f"the stream ended inside a packet, after {len(self._held)} of its bytes")
            found = self._held.find(MAGIC, 1)
            self._drop(found if found >= 0 else len(self._held))
            self._lost = True
            yield from self.feed(b"")

    def _check(self, size: int) -> InvalidPacket | None:
        """The first damage in what has come of the packet since the last check."""
        here = min(size, len(self._held))
        while self._checked < here:
            first = (self._checked - HEADER.size) // RECORD.itemsize
            stop = min(here, _place(first + min(max(first, FIRST_BLOCK), MAX_BLOCK)))
            self._credit -= max(0, min(self._base + stop, self._reach) - (self._base + self._checked))
            if self._credit < 0:
                return InvalidPacket("packets are nested in one another too often")
            found = self._check_until(stop, first, size)
            self._checked = stop if found is None else found[0]
            self._reach = max(self._reach, self._base + self._checked)
            if found is not None:
                return found[1]
        return None

    def _check_until(self, stop: int, first: int, size: int) -> tuple[int, InvalidPacket] | None:
        """Damage in the records from that one on that end by `stop`, and where it begins."""
        held = self._held
        _, _, width, height, _, _ = HEADER.unpack_from(held)
        last = (stop - HEADER.size) // RECORD.itemsize
        bad = _first_bad(np.frombuffer(bytes(held[_place(first) : _place(last)]), RECORD), width, height)
        other = held.find(held[:SHARED_HEADER_BYTES], max(HEADER.size, self._checked - SHARED_HEADER_BYTES + 1), stop)
        if other >= 0 and (bad is None or other + SHARED_HEADER_BYTES <= _place(first + bad[0] + 1)):
            return other, InvalidPacket(f"another packet begins after {other} bytes of a packet of {size}")
        return None if bad is None else (_place(first + bad[0]), InvalidPacket(bad[1]))

    def _skip(self) -> None:
        """Skip to the next magic, which may start in the last bytes; with no credit left, beyond what was good."""
        spent = self._credit < 0
        self._credit = max(0, self._credit)
        good = self._reach - self._base - len(MAGIC) + 1
        found = self._held.find(MAGIC, max(1, good) if spent else 1)
        self._drop(found if found >= 0 else len(self._held) - len(MAGIC) + 1)
        self._lost = True

    def _drop(self, count: int) -> None:
        del self._held[:count]
        self._base += count
        self._checked = HEADER.size


def _place(index: int) -> int:
    """Where a record begins in its packet."""
    return HEADER.size + index * RECORD.itemsize


def _packet_size(data: bytes, numbered: bool = False) -> int | InvalidPacket:
    """The length of the packet with this header."""
    if len(data) < HEADER.size:
        return InvalidPacket(f"{len(data)} bytes are shorter than a header")
    magic, version, width, height, zero, count = HEADER.unpack_from(data)
    if magic != MAGIC:
        return InvalidPacket(f"the magic is {magic!r}")
    if (version != VERSION or zero) and not (numbered and version == NUMBERED_VERSION):
        return InvalidPacket(f"the version is {version}")
    if not width or not height:
        return InvalidPacket(f"the sensor is {width}×{height}")
    if count > MAX_PACKET_EVENTS:
        return InvalidPacket(f"the count is {count:,}")
    return HEADER.size + int(count) * RECORD.itemsize


def _checked(data: bytes) -> EventPacket | InvalidPacket:
    _, _, width, height, _, _ = HEADER.unpack_from(data)
    bad = _first_bad(np.frombuffer(data, RECORD, offset=HEADER.size), width, height)
    return _packet(data) if bad is None else InvalidPacket(bad[1])


def _first_bad(records: NDArray[Any], width: int, height: int) -> tuple[int, str] | None:
    """The first record that cannot be an event of this sensor, and why."""
    low, high = LIMITS["t"]
    outside = (records["x"] >= width) | (records["y"] >= height)
    wrong = outside | (records["p"] > 1) | (records["t"] < low) | (records["t"] > high)
    if not wrong.any():
        return None
    index = int(wrong.argmax())
    if outside[index]:
        return index, f"an event lies outside the {width}×{height} sensor"
    polarity = int(records["p"][index])
    return index, f"a polarity is {polarity}" if polarity > 1 else "a time is out of range"


def _packet(data: bytes) -> EventPacket:
    """The packet of bytes that have been checked."""
    _, version, width, height, number, _ = HEADER.unpack_from(data)
    records = np.frombuffer(data, RECORD, offset=HEADER.size)
    events = np.empty(len(records), EVENT)
    for name in RECORD.names or ():
        events[name] = records[name]
    return EventPacket((width, height), events, number if version == NUMBERED_VERSION else None)
