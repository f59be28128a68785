"""40-bit ATIS against a decoder that takes one event at a time."""

import numpy as np
import pytest
import slow
from makers import as_events, atis, refused

from ripe_mambaspike.events import read

OVERFLOW = bytes([0, 240, 0, 0, 0])


def random_file(count, overflow_share, seed=0):
    """Times go forward, except for a few small steps back; overflow events have anything in their other bytes."""
    random = np.random.default_rng(seed)
    words, time = [], 0
    for _ in range(count):
        if random.random() < overflow_share:
            words.append(bytes([*random.integers(0, 256, 1), 240, *random.integers(0, 256, 3)]))
            continue
        time = max(0, time + int(random.integers(-2, 60))) % 2**23
        words.append(atis(int(random.integers(256)), int(random.integers(240)), time, int(random.integers(2))))
    return b"".join(words)


@pytest.mark.parametrize("share", [0, 0.02, 0.5])
def test_every_event_is_the_slow_decoders(read_bytes, share):
    data = random_file(300, share)
    recording = read_bytes(data, "a.bin")
    assert recording.format == "atis"
    np.testing.assert_array_equal(recording.events, as_events(slow.atis(data)[0]))


def test_more_events_than_a_block_has(read_bytes):
    data = random_file(70_000, 0.001, seed=1)
    np.testing.assert_array_equal(read_bytes(data, "a.bin", blocks=()).events, as_events(slow.atis(data)[0]))


def test_the_corners_of_every_field(read_bytes):
    data = atis(0, 0, 0, 0) + atis(255, 239, 2**23 - 1, 1) + OVERFLOW * 3 + atis(1, 241, 2**23 - 1, 0)
    assert read_bytes(data, "a.bin").events.tolist() == [
        (0, 0, 0, 0),
        (255, 239, 2**23 - 1, 1),
        (1, 241, 2**23 - 1 + 3 * 8192, 0),
    ]


def test_recognized_by_content(saved):
    data = b"".join(atis(i, i, 100 * i, i % 2) for i in range(30))
    assert read(saved(data, "clip.dat40")).format == "atis"


@pytest.mark.parametrize(
    ("corner", "size"),
    [((33, 33), (34, 34)), ((34, 0), (128, 128)), ((128, 5), (240, 180)), ((5, 200), (304, 240)), ((7, 250), (8, 251))],
)
def test_the_smallest_known_sensor_that_holds_the_events(read_bytes, corner, size):
    recording = read_bytes(atis(0, 0, 5, 1) + atis(*corner, 9, 0), "a.bin")
    assert recording.sensor_size == size
    assert recording.metadata["sensor_size_from"] == "the events"


def test_overflows_alone_are_no_events(saved):
    refused(saved(OVERFLOW * 20, "a.bin"), "events", "none")


def test_a_cut_event_is_named_by_its_byte(saved):
    refused(saved((atis(1, 2, 3, 0) * 3)[:13], "a.bin"), "size", "words of 5 bytes", "cut off at byte 13")
