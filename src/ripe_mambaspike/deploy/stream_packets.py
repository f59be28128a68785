"""Events on a wire: one frame of the format that `ripe stream` takes from a pipe or a UDP port.

A frame is a header of 16 bytes and so many records of 13 bytes, all little-endian:

    header  magic "REVT", version u16 = 1, width u16, height u16, zero u16, count u32
    record  t i64 (µs), x u16, y u16, p u8 (0 OFF, 1 ON)

A datagram is exactly one frame; in a pipe frames follow each other without a gap.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import EVENT, LIMITS, Events

MAGIC = b"REVT"
VERSION = 1
HEADER = struct.Struct("<4sHHHHI")
RECORD = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
MOST_EVENTS = 1 << 20  # of a frame: a larger count is damage
DATAGRAM_EVENTS = (65507 - HEADER.size) // RECORD.itemsize


class Frame(NamedTuple):
    """Events of one frame and the size of their sensor, (width, height)."""

    sensor_size: tuple[int, int]
    events: Events


class Damage(NamedTuple):
    """Bytes that are no frame, and why."""

    reason: str


def write_frame(events: Events, sensor_size: tuple[int, int]) -> bytes:
    """A frame of these events."""
    width, height = sensor_size
    if not (1 <= width <= 65535 and 1 <= height <= 65535):
        raise InputError(f"sensor_size is {sensor_size}; a width and a height from 1 to 65535 are wanted")
    if len(events) > MOST_EVENTS:
        raise InputError(f"a frame of {len(events):,} events is asked for; at most {MOST_EVENTS:,} are wanted")
    records = np.empty(len(events), RECORD)
    for name in RECORD.names or ():
        records[name] = events[name]
    return HEADER.pack(MAGIC, VERSION, width, height, 0, len(events)) + records.tobytes()


def read_frame(data: bytes) -> Frame | Damage:
    """The frame that these bytes are, all of them."""
    size = _frame_size(data)
    if isinstance(size, Damage):
        return size
    if size != len(data):
        return Damage(f"a frame of {size} bytes came as {len(data)}")
    return _checked(data)


class FrameReader:
    """Frames out of a pipe: pieces of any size in; after damage the next magic is looked for."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._lost = False  # inside damage that has been told of

    def feed(self, data: bytes) -> Iterator[Frame | Damage]:
        """What these bytes complete."""
        held = self._held
        held += data
        while len(held) >= HEADER.size:
            size = _frame_size(bytes(held[: HEADER.size]))
            if isinstance(size, Damage):
                if not self._lost:
                    yield size
                self._lost = True
                found = held.find(MAGIC, 1)
                # The magic may have begun in the last bytes.
                del held[: found if found >= 0 else len(held) - len(MAGIC) + 1]
                continue
            if len(held) < size:
                return
            self._lost = False
            frame = bytes(held[:size])
            del held[:size]
            yield _checked(frame)

    def end(self) -> Iterator[Damage]:
        """What is left when nothing more comes."""
        if self._held and not self._lost:
            yield Damage(f"the stream ended inside a frame, after {len(self._held)} of its bytes")
        self._held.clear()


def _frame_size(data: bytes) -> int | Damage:
    """How long the frame is whose header this is."""
    if len(data) < HEADER.size:
        return Damage(f"{len(data)} bytes are shorter than a header")
    magic, version, width, height, zero, count = HEADER.unpack_from(data)
    if magic != MAGIC:
        return Damage(f"the magic is {magic!r}")
    if version != VERSION or zero:
        return Damage(f"the version is {version}")
    if not width or not height:
        return Damage(f"the sensor is {width}×{height}")
    if count > MOST_EVENTS:
        return Damage(f"the count is {count:,}")
    return HEADER.size + int(count) * RECORD.itemsize


def _checked(data: bytes) -> Frame | Damage:
    _, _, width, height, _, _ = HEADER.unpack_from(data)
    records = np.frombuffer(data, RECORD, offset=HEADER.size)
    if len(records):
        if int(records["x"].max()) >= width or int(records["y"].max()) >= height:
            return Damage(f"an event lies outside the {width}×{height} sensor")
        if int(records["p"].max()) > 1:
            return Damage(f"a polarity is {int(records['p'].max())}")
        low, high = LIMITS["t"]
        if int(records["t"].min()) < low or int(records["t"].max()) > high:
            return Damage("a time is out of range")
    events = np.empty(len(records), EVENT)
    for name in RECORD.names or ():
        events[name] = records[name]
    return Frame((width, height), events)
