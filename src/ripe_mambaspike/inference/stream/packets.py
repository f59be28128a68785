"""Events on a wire: one frame of the format that `ripe stream` takes from a pipe or a UDP port.

A frame is a header of 16 bytes and so many records of 13 bytes, all little-endian:

    header  magic "REVT", version u16 = 1, width u16, height u16, zero u16, count u32
    record  t i64 (µs), x u16, y u16, p u8 (0 OFF, 1 ON)

A datagram is exactly one frame; in a pipe frames follow each other without a gap. What is damaged there ends at the
next magic, so that it takes no other frame with it.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import EVENT, LIMITS, Events

MAGIC = b"REVT"
VERSION = 1
HEADER = struct.Struct("<4sHHHHI")
RECORD = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
MAX_PACKET_EVENTS = 1 << 20  # of a frame: a larger count is damage
SHARED_HEADER_BYTES = HEADER.size - 4  # bytes of a header that all frames of one stream share: all but the count
FIRST_BLOCK, MAX_BLOCK = 256, 1 << 14  # records looked at in one go: few first, since damage mostly shows early
MAX_RESCANS = 16  # how often a byte may be looked at again, on average, as part of another frame
MAX_CREDIT = MAX_RESCANS * (HEADER.size + MAX_PACKET_EVENTS * RECORD.itemsize)  # bytes; one largest frame so often
DATAGRAM_EVENTS = (65507 - HEADER.size) // RECORD.itemsize


class EventPacket(NamedTuple):
    """Events of one frame and the size of their sensor, (width, height)."""

    sensor_size: tuple[int, int]
    events: Events


class InvalidPacket(NamedTuple):
    """Bytes that are no frame, and why."""

    reason: str


def write_packet(events: Events, sensor_size: tuple[int, int]) -> bytes:
    """A frame of these events."""
    width, height = sensor_size
    if not (1 <= width <= 65535 and 1 <= height <= 65535):
        raise InputError(f"sensor_size is {sensor_size}; a width and a height from 1 to 65535 are wanted")
    if len(events) > MAX_PACKET_EVENTS:
        raise InputError(f"a frame of {len(events):,} events is asked for; at most {MAX_PACKET_EVENTS:,} are wanted")
    records = np.empty(len(events), RECORD)
    for name in RECORD.names or ():
        records[name] = events[name]
    return HEADER.pack(MAGIC, VERSION, width, height, 0, len(events)) + records.tobytes()


def read_packet(data: bytes) -> EventPacket | InvalidPacket:
    """The frame that these bytes are, all of them."""
    size = _frame_size(data)
    if isinstance(size, InvalidPacket):
        return size
    if size != len(data):
        return InvalidPacket(f"a frame of {size} bytes came as {len(data)}")
    return _checked(data)


class PacketReader:
    """Frames out of a pipe: pieces of any size in; after damage the next magic is looked for.

    A frame is looked at while it comes: a count that is wrong, or a frame that was cut off, shows by a record that is
    none or by the header of the next frame, and is not waited for. What it covered is then looked at again, as part of
    the frame whose header comes next. Headers inside headers inside headers could make that quadratic in the bytes, so
    a credit that grows with the bytes bounds it; where it is used up, all that was found good before is passed over.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._lost = False  # inside damage that has been told of
        self._looked = HEADER.size  # bytes of the frame at the front that are known to be good
        self._base = 0  # bytes of the stream before those held
        self._reach = 0  # bytes of the stream that have been found good, as part of any frame
        self._credit = 0  # bytes that may still be looked at again

    def feed(self, data: bytes) -> Iterator[EventPacket | InvalidPacket]:
        """What these bytes complete."""
        held = self._held
        held += data
        self._credit = min(self._credit + MAX_RESCANS * len(data), MAX_CREDIT)
        while len(held) >= HEADER.size:
            size = _frame_size(bytes(held[: HEADER.size]))
            if isinstance(size, InvalidPacket):
                if not self._lost:
                    yield size
                self._skip()
            elif (damage := self._look(size)) is not None:
                self._skip()
                yield damage
            elif len(held) < size:
                return
            else:
                frame = bytes(held[:size])
                self._drop(size)
                self._lost = False
                yield _frame(frame)

    def end(self) -> Iterator[EventPacket | InvalidPacket]:
        """What is left when nothing more comes; a frame that never ended may hide others."""
        while len(self._held) > 0:
            if not self._lost:
                yield InvalidPacket(f"the stream ended inside a frame, after {len(self._held)} of its bytes")
            found = self._held.find(MAGIC, 1)
            self._drop(found if found >= 0 else len(self._held))
            self._lost = True
            yield from self.feed(b"")

    def _look(self, size: int) -> InvalidPacket | None:
        """Damage in what has come of the frame since the last look: whatever shows first, however it was cut."""
        here = min(size, len(self._held))
        while self._looked < here:
            first = (self._looked - HEADER.size) // RECORD.itemsize
            stop = min(here, _place(first + min(max(first, FIRST_BLOCK), MAX_BLOCK)))
            self._credit -= max(0, min(self._base + stop, self._reach) - (self._base + self._looked))
            if self._credit < 0:
                return InvalidPacket("frames begin inside one another too often")
            found = self._look_until(stop, first, size)
            self._looked = stop if found is None else found[0]
            self._reach = max(self._reach, self._base + self._looked)
            if found is not None:
                return found[1]
        return None

    def _look_until(self, stop: int, first: int, size: int) -> tuple[int, InvalidPacket] | None:
        """Damage in the records from that one on that end by `stop`, and where it begins."""
        held = self._held
        _, _, width, height, _, _ = HEADER.unpack_from(held)
        last = (stop - HEADER.size) // RECORD.itemsize
        bad = _first_bad(np.frombuffer(bytes(held[_place(first) : _place(last)]), RECORD), width, height)
        other = held.find(held[:SHARED_HEADER_BYTES], max(HEADER.size, self._looked - SHARED_HEADER_BYTES + 1), stop)
        if other >= 0 and (bad is None or other + SHARED_HEADER_BYTES <= _place(first + bad[0] + 1)):
            return other, InvalidPacket(f"another frame begins after {other} bytes of a frame of {size}")
        return None if bad is None else (_place(first + bad[0]), InvalidPacket(bad[1]))

    def _skip(self) -> None:
        """On to the next magic, which may have begun in the last bytes; with no credit left, beyond what was good."""
        spent = self._credit < 0
        self._credit = max(0, self._credit)
        good = self._reach - self._base - len(MAGIC) + 1
        found = self._held.find(MAGIC, max(1, good) if spent else 1)
        self._drop(found if found >= 0 else len(self._held) - len(MAGIC) + 1)
        self._lost = True

    def _drop(self, count: int) -> None:
        del self._held[:count]
        self._base += count
        self._looked = HEADER.size


def _place(index: int) -> int:
    """Where a record begins in its frame."""
    return HEADER.size + index * RECORD.itemsize


def _frame_size(data: bytes) -> int | InvalidPacket:
    """How long the frame is whose header this is."""
    if len(data) < HEADER.size:
        return InvalidPacket(f"{len(data)} bytes are shorter than a header")
    magic, version, width, height, zero, count = HEADER.unpack_from(data)
    if magic != MAGIC:
        return InvalidPacket(f"the magic is {magic!r}")
    if version != VERSION or zero:
        return InvalidPacket(f"the version is {version}")
    if not width or not height:
        return InvalidPacket(f"the sensor is {width}×{height}")
    if count > MAX_PACKET_EVENTS:
        return InvalidPacket(f"the count is {count:,}")
    return HEADER.size + int(count) * RECORD.itemsize


def _checked(data: bytes) -> EventPacket | InvalidPacket:
    _, _, width, height, _, _ = HEADER.unpack_from(data)
    bad = _first_bad(np.frombuffer(data, RECORD, offset=HEADER.size), width, height)
    return _frame(data) if bad is None else InvalidPacket(bad[1])


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


def _frame(data: bytes) -> EventPacket:
    """The frame of bytes that have been looked at."""
    _, _, width, height, _, _ = HEADER.unpack_from(data)
    records = np.frombuffer(data, RECORD, offset=HEADER.size)
    events = np.empty(len(records), EVENT)
    for name in RECORD.names or ():
        events[name] = records[name]
    return EventPacket((width, height), events)
