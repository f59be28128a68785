"""Headers inside headers: what a hostile pipe costs is counted, not timed."""

import numpy as np
import pytest
from packets import SENSOR, make, same

from ripe_mambaspike.inference.stream import packets as stream_packets
from ripe_mambaspike.inference.stream.packets import (
    FIRST_BLOCK,
    HEADER,
    MAGIC,
    MAX_PACKET_EVENTS,
    MAX_RESCANS,
    RECORD,
    VERSION,
    EventPacket,
    InvalidPacket,
    PacketReader,
    write_packet,
)  # fmt: skip

PIECE = 1 << 14


def nested(count, last_is_bad):
    """The header of a largest frame, and records that are good, every second of which is a header of another sensor."""
    records = np.zeros(count, RECORD)
    for index in range(0, count - 1, 2):
        head = HEADER.pack(MAGIC, VERSION, 16000 - index // 2 % 8000, 60000, 0, MAX_PACKET_EVENTS)
        records[index : index + 2] = np.frombuffer(head.ljust(2 * RECORD.itemsize, b"\0"), RECORD)
    if last_is_bad:
        records[-1]["p"] = 9
    return HEADER.pack(MAGIC, VERSION, 65000, 65000, 0, MAX_PACKET_EVENTS) + records.tobytes()


def read(data):
    reader = PacketReader()
    found = [one for first in range(0, len(data), PIECE) for one in reader.feed(data[first : first + PIECE])]
    return found + list(reader.end())


@pytest.fixture
def looked_at(monkeypatch):
    """How many records were looked at."""
    counts, real = [], stream_packets._first_bad

    def counted(records, width, height):
        counts.append(len(records))
        return real(records, width, height)

    monkeypatch.setattr(stream_packets, "_first_bad", counted)
    return lambda: sum(counts)


@pytest.mark.parametrize("last_is_bad", [True, False], ids=["damage at the end", "a frame that never ends"])
@pytest.mark.parametrize("count", [1000, 4000])
def test_nested_headers_cost_a_bounded_number_of_looks(looked_at, count, last_is_bad):
    found = read(nested(count, last_is_bad))
    assert {type(one) for one in found} == {InvalidPacket}
    assert looked_at() <= (MAX_RESCANS + 3) * count  # it was count² / 4


def test_many_headers_that_fail_at_once_cost_little(looked_at):
    """Damage that shows in the first record is not paid for with all that is held."""
    count = 4000
    records = np.frombuffer(nested(count, last_is_bad=True)[HEADER.size :], RECORD).copy()
    records["p"][1::2] = 1
    records["x"][1::2] = 64000  # outside the sensors of the inner headers, inside that of the outer one
    read(HEADER.pack(MAGIC, VERSION, 65000, 65000, 0, MAX_PACKET_EVENTS) + records.tobytes())
    assert looked_at() <= (MAX_RESCANS + FIRST_BLOCK) * count


def test_the_frame_after_them_is_found():
    events = make(range(50))
    found = read(nested(4000, last_is_bad=True) + write_packet(events, SENSOR) * 3)
    frames = [one for one in found if isinstance(one, EventPacket)]
    assert len(frames) == 3
    for frame in frames:
        assert frame.sensor_size == SENSOR
        assert same(frame.events, events)
