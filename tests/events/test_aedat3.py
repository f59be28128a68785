"""AEDAT 3.1 against a decoder that takes one event at a time."""

import struct

import numpy as np
import pytest
import slow
from makers import AEDAT3, as_events, packet, polarity, refused

from raising import raises
from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events import read

ONE = packet(1, 8, polarity(3, 4, 5, 1))


def random_packets(count, seed=0):
    """Polarity packets with invalid events among them, packets of other types, an overflow of the time."""
    random = np.random.default_rng(seed)
    data, time = b"", 2**31 - 200_000
    for _ in range(count):
        kind = int(random.choice([0, 1, 1, 1, 2, 3]))
        if kind != 1:
            size = int(random.integers(1, 40))
            data += packet(kind, size, random.bytes(size * int(random.integers(0, 4))))
            continue
        body, overflow = b"", time >> 31
        for _ in range(int(random.integers(0, 30))):
            x, y, p, valid = (int(random.integers(top)) for top in (128, 128, 2, 8))
            body += polarity(x, y, time % 2**31, p, int(valid > 0))
            time += int(random.integers(0, 500))
            if time >> 31 != overflow:
                break
        data += packet(1, 8, body, overflow)
    return data


def test_every_event_is_the_slow_decoders(read_bytes):
    data = random_packets(200)
    expected, counts = slow.aedat3(data)
    recording = read_bytes(AEDAT3 + data, blocks=())
    np.testing.assert_array_equal(recording.events, as_events(expected))
    assert recording.metadata["other_events"] == counts["other"] > 0
    assert recording.metadata["invalid_events"] == counts["invalid"] > 0
    assert recording.sensor_size == (128, 128)
    assert recording.first_us < 2**31 < recording.last_us
    assert recording.in_order()
    assert recording.metadata["camera"] == "DVS128"
    assert recording.metadata["created"] == "2017-01-01 10:00:00"


def test_the_corners_of_every_field(read_bytes):
    body = polarity(0, 0, 0, 0) + polarity(32767, 32767, 2**31 - 1, 1)
    header = AEDAT3.replace(b"DVS128", b"Unknown")
    assert read_bytes(header + packet(1, 8, body, 3), blocks=()).events.tolist() == [
        (0, 0, 3 * 2**31, 0),
        (32767, 32767, 4 * 2**31 - 1, 1),
    ]


@pytest.mark.parametrize("first", ["class,startTime_usec,endTime_usec\n", ""])
def test_the_labels_beside_it(saved, first):
    saved(f"{first}1,100,200\n\n11,250,900\n".encode(), "user01_natural_labels.csv")
    recording = read(saved(AEDAT3 + ONE, "user01_natural.aedat"))
    assert recording.metadata["labels"] == [
        {"label": 1, "start_us": 100, "stop_us": 200},
        {"label": 11, "start_us": 250, "stop_us": 900},
    ]


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("1,2", "line 2", "'1,2'"),
        ("a,1,2", "line 2", "'a,1,2'"),
        ("1,5,5", "line 2", "5 to 5"),
        ("1,-4,5", "line 2", "-4 to 5"),
        ("\xff", "labels", "0xff"),
    ],
)
def test_invalid_labels(saved, line, field, value):
    labels = saved(b"1,100,200\n" + line.encode("latin-1"), "a_labels.csv")
    with raises(ReadError, field=field, path=labels, mentions=[value]):
        read(saved(AEDAT3 + ONE, "a.aedat"))


def test_a_header_without_an_end(saved):
    refused(saved(AEDAT3[:14] + ONE), "header", "#!END-HEADER", "byte 14")


@pytest.mark.parametrize(
    ("head", "field", "value"),
    [
        ((1, 1, 8, 4, 0, 9, 9, 9), "size", "9 events of 8 bytes"),
        ((1, 1, 8, 4, 0, 1, 2**31 - 1, 1), "packet", "2147483647 events"),
        ((1, 1, 8, 4, 0, -1, -1, -1), "packet", "-1 events"),
        ((1, 1, -8, 4, 0, 1, 1, 1), "packet", "-8 bytes"),
        ((1, 1, 4, 4, 0, 2, 2, 2), "packet", "4 bytes"),
        ((2, 1, 2**31 - 1, 4, 0, 2**31 - 1, 2**31 - 1, 0), "size", "2147483647 bytes"),
    ],
)
def test_packets_with_wrong_sizes(saved, head, field, value):
    damaged = struct.pack("<hhiiiiii", *head) + bytes(8)
    refused(saved(AEDAT3 + ONE + damaged, "a.aedat"), field, value, f"at byte {len(AEDAT3 + ONE)}")
