"""DAT against a decoder that takes one event at a time."""

import numpy as np
import pytest
import slow
from makers import DAT, as_events, dat, refused, small, words

from raising import raises
from ripe_mambaspike.errors import ConfigError, ReadError
from ripe_mambaspike.events import read

WITHOUT_SIZE = b"% Data file containing Event2D events.\n% Version 2\n"


def random_events(count):
    random = np.random.default_rng(4)
    times = 2**32 - 2**27 + np.cumsum(random.choice([-2, 0, 1, 2**28 // count * 4], count))
    return b"".join(
        words("I", int(time) % 2**32, int(random.integers(8)) << 29 | int(p) << 28 | int(y) << 14 | int(x))
        for time, x, y, p in zip(
            times,
            random.integers(0, 304, count),
            random.integers(0, 240, count),
            random.integers(0, 2, count),
            strict=True,
        )
    )


@pytest.mark.parametrize(("count", "blocks"), [(200, (1, 2, 7)), (66_000, ())])
def test_every_event_is_the_slow_decoders(read_bytes, count, blocks):
    data = random_events(count)
    recording = read_bytes(DAT + data, blocks=blocks)
    np.testing.assert_array_equal(recording.events, as_events(slow.dat(data)[0]))
    assert recording.format == "dat"
    assert recording.sensor_size == (304, 240)
    assert recording.first_us < 2**32 < recording.last_us


@pytest.mark.parametrize(
    ("corner", "size"), [((303, 239), (304, 240)), ((5, 300), (640, 480)), ((16383, 16383), (16384,) * 2)]
)
def test_a_size_the_header_does_not_give(read_bytes, corner, size):
    recording = read_bytes(WITHOUT_SIZE + b"\x0c\x08" + dat(*corner, 5, 1))
    assert recording.events.tolist() == [(*corner, 5, 1)]
    assert recording.sensor_size == size


@pytest.mark.parametrize(
    ("pair", "field", "values"),
    [
        (b"", "size", ["two bytes of type and size", "cut off at byte 51"]),
        (b"\x00", "size", ["cut off at byte 52"]),
        (b"\x01\x08", "header", ["type 0 or 12 and 8 bytes", "type 1 and 8 bytes (byte 51)"]),
        (b"\x00\x10", "header", ["type 0 and 16 bytes"]),
        (b"\x00\x08", "events", ["none"]),
        (b"\x00\x08\x01\x02\x03", "size", ["words of 8 bytes from byte 53", "cut off at byte 56"]),
    ],
)
def test_invalid_type_and_size(saved, pair, field, values):
    refused(saved(WITHOUT_SIZE + pair), field, *values)


@pytest.mark.parametrize("pair", [b"", b"\x0c\x08", b"\x00\x08"])
def test_without_a_header(read_bytes, pair):
    """The format and the size are given; type and size of an event may be there or not."""
    data = random_events(50)
    recording = read_bytes(pair + data, format="dat", sensor_size=(304, 240))
    np.testing.assert_array_equal(recording.events, as_events(slow.dat(data)[0]))
    assert (recording.format, recording.sensor_size) == ("dat", (304, 240))
    assert recording.metadata["sensor_size_from"] == "the caller"


def test_a_header_counts_where_there_is_one(read_bytes):
    data = random_events(20)
    recording = read_bytes(DAT + data, format="dat")
    np.testing.assert_array_equal(recording.events, as_events(slow.dat(data)[0]))
    assert recording.metadata["sensor_size_from"] == "the file"


def test_what_a_file_without_a_header_needs(saved):
    path = saved(random_events(20), "a.dat")
    with raises(ReadError, "sensor_size", path):
        read(path, format="dat")
    with raises(ReadError, "format", path):
        read(path, sensor_size=(304, 240))
    cut = saved(random_events(20)[:-3], "cut.dat")
    with raises(ReadError, path=cut):
        read(cut, format="dat", sensor_size=(304, 240))


@pytest.mark.parametrize("name", ["evt2", "evt3"])
def test_other_files_without_a_header(saved, name):
    file_name, data = small(name)
    whole = read(saved(data, file_name))
    lines = [line for line in data.split(b"\n") if line.startswith(b"%")]
    path = saved(data[sum(len(line) + 1 for line in lines) :], "bare.raw")
    with raises(ReadError, "sensor_size", path):
        read(path, format=name)
    np.testing.assert_array_equal(read(path, format=name, sensor_size=whole.sensor_size).events, whole.events)


@pytest.mark.parametrize("name", ["npy", "npz", "aedat2", "aedat3", "text"])
def test_a_format_that_is_known_by_its_beginning_is_not_forced(saved, name):
    path = saved(random_events(20), "a.dat")
    with raises(ReadError, "format", path):
        read(path, format=name, sensor_size=(304, 240))
    with raises(ConfigError, "format"):
        read(path, format="prophesee")
