"""What was written is read back; what a format cannot hold is refused, and leaves no file."""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from makers import EVENTS, as_events, rows

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events import Recording, make_events, read, write, writing

ENDINGS = (".bin", ".npz", ".npy", ".raw", ".aedat", ".csv", ".txt")
KEEP_SIZE = (".npz", ".raw", ".aedat", ".csv", ".txt")
HOUR = 3600 * 10**6


def back(recording, path):
    write(recording, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_keeps_the_events(tmp_path, ending):
    recording = Recording(EVENTS, (50, 40))
    again = back(recording, tmp_path / f"a{ending}")
    np.testing.assert_array_equal(again.events, EVENTS)
    if ending in KEEP_SIZE:
        assert again.sensor_size == (50, 40)
    assert [path.name for path in tmp_path.iterdir()] == [f"a{ending}"]


@st.composite
def recordings(draw):
    """Any pixel of a 240×180 sensor; short and long steps of time, a few of them back; any start up to 6 hours."""
    start = draw(st.sampled_from([0, 1, 2**24 - 50, 2**31 - 50, 2**32 - 50]) | st.integers(0, 6 * HOUR))
    small_step = st.integers(-40, 4000)
    step = small_step | small_step | st.sampled_from([4096, 2**13, 2**23, 2**24, 7 * 10**6, 30 * 60 * 10**6])
    steps = draw(st.lists(step, min_size=1, max_size=60))
    times = np.maximum(start + np.cumsum(steps), 0)
    pixels = [draw(st.tuples(st.integers(0, 239), st.integers(0, 179), st.integers(0, 1))) for _ in steps]
    x, y, p = zip(*pixels, strict=True)
    return Recording(make_events(x, y, times, p), (240, 180))


@pytest.mark.parametrize("ending", [".bin", ".npz", ".npy", ".raw", ".aedat", ".csv"])
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(recording=recordings())
def test_random_recordings_are_read_back(tmp_path, ending, recording):
    again = back(recording, tmp_path / f"a{ending}")
    np.testing.assert_array_equal(again.events, recording.events)
    if ending in KEEP_SIZE:
        assert again.sensor_size == (240, 180)


@pytest.mark.parametrize("ending", [".npz", ".npy", ".raw", ".aedat", ".csv"])
def test_large_absolute_times(tmp_path, ending):
    """As of a camera that counts from 1970, through every wrap on the way."""
    times = 1_605_537_493_718_345 + np.arange(300) * 20_000_000
    events = make_events(np.arange(300) % 100, np.arange(300) % 90, times, np.arange(300) % 2)
    np.testing.assert_array_equal(back(Recording(events, (128, 128)), tmp_path / f"a{ending}").events, events)


@pytest.mark.parametrize("ending", [".npz", ".npy", ".aedat", ".csv"])
def test_times_before_zero(tmp_path, ending):
    events = as_events([(1, 2, -5, 1), (3, 4, 0, 0), (5, 6, 7, 1)])
    np.testing.assert_array_equal(back(Recording(events, (128, 128)), tmp_path / f"a{ending}").events, events)


def test_a_gap_of_days_in_evt3(tmp_path):
    events = as_events([(1, 2, 2**24 - 1, 1), (3, 4, 2**24 + 48 * HOUR, 0), (3, 4, 2**24 + 48 * HOUR - 8_000_000, 0)])
    np.testing.assert_array_equal(back(Recording(events, (2048, 2048)), tmp_path / "a.raw").events, events)


@pytest.mark.parametrize("late", [0, 2047 << 12, 2048 << 12, 2049 << 12, 4095 << 12, 4096 << 12])
def test_evt3_whose_first_event_is_not_the_earliest(tmp_path, late):
    events = as_events([(1, 2, late, 1), (3, 4, max(0, late - (2047 << 12)), 0)])
    np.testing.assert_array_equal(back(Recording(events, (640, 480)), tmp_path / "a.raw").events, events)


@pytest.mark.parametrize("ending", ENDINGS)
def test_more_events_than_a_block_has(tmp_path, ending):
    count = 70_000
    events = make_events(np.arange(count) % 128, np.arange(count) % 100, np.arange(count) * 700, np.arange(count) % 2)
    np.testing.assert_array_equal(back(Recording(events, (128, 128)), tmp_path / f"a{ending}").events, events)


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_same_recording_gives_the_same_bytes(tmp_path, ending):
    first, second = (write(Recording(EVENTS, (50, 40)), tmp_path / f"{name}{ending}") for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_sensor_of_a_davis_gets_its_layout(tmp_path):
    events = as_events([(345, 259, 5, 1), (0, 0, 6, 0)])
    again = back(Recording(events, (346, 260)), tmp_path / "a.aedat")
    assert again.events.tolist() == rows(events)
    assert again.metadata["camera"] == "DAVIS346"


def one(x=1, y=1, t=1, p=1):
    return [(x, y, t, p)]


@pytest.mark.parametrize(
    ("ending", "events", "size", "field", "values"),
    [
        (".bin", one(x=256), (300, 300), "sensor_size", ["x up to 255 and y up to 239", "x = 256, y = 1"]),
        (".bin", one(y=240), (300, 300), "sensor_size", ["x up to 255 and y up to 239", "x = 1, y = 240"]),
        (".bin", one(t=-1), (10, 10), "t", ["from 0 on"]),
        (".bin", one(t=2 * 10**7) + one(t=5), (10, 10), "t", ["in order"]),
        (".bin", one(t=1_605_537_493_718_345), (10, 10), "t", ["4,194,304 overflow events", 1_605_537_493_718_345]),
        (".raw", one(), (2049, 10), "sensor_size", ["2048×2048", "2049×10"]),
        (".raw", one(t=-1), (10, 10), "t", ["from 0 on", "-1 µs"]),
        (".raw", one(t=2**24) + one(t=0), (10, 10), "t", ["at most 8 s"]),
        (".raw", one(t=0) + one(t=2**60), (10, 10), "t", ["1,048,576 time words"]),
        (".aedat", one(), (1025, 10), "sensor_size", ["1024×512", "1025×10"]),
        (".aedat", one(), (10, 513), "sensor_size", ["1024×512", "10×513"]),
        (".aedat", one(t=0) + one(t=2**31), (10, 10), "t", ["35 minutes"]),
        (".aedat", one(t=2**31) + one(t=0), (10, 10), "t", ["35 minutes"]),
        (".csv", one(t=2**53 + 1), (10, 10), "t", ["2⁵³", 2**53 + 1]),
        (".npz", one(x=10), (10, 10), "events", ["10×10 sensor", "(10, 1)"]),
        (".npy", one(p=2), (10, 10), "p", ["0 and 1", "2 to 2"]),
        (".npy", [], (10, 10), "events", ["at least one", "none"]),
        (".mp4", one(), (10, 10), "path", [*ENDINGS, "'.mp4'"]),
    ],
)
def test_what_a_format_cannot_hold(tmp_path, ending, events, size, field, values):
    with raises(InputError, field=field, mentions=values):
        write(Recording(as_events(events), size), tmp_path / f"a{ending}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["missing/a.npy", "file.npy/a.npy", "folder.npy"])
def test_paths_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file.npy").write_bytes(b"")
    (tmp_path / "folder.npy").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with raises(InputError, field="path", path=tmp_path / place):
        write(Recording(EVENTS, (50, 40)), tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("error", [InputError("half way"), OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_half_way_leaves_the_old_file(tmp_path, monkeypatch, error):
    def encode(recording):
        yield b"half of it"
        raise error

    path = tmp_path / "a.npy"
    path.write_bytes(b"old")
    monkeypatch.setitem(writing.ENCODERS, ".npy", encode)
    with pytest.raises(InputError if isinstance(error, Exception) else KeyboardInterrupt):
        write(Recording(EVENTS, (50, 40)), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
