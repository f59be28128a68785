"""Real recordings, whole, against the slow decoders and what is known of them."""

import re
import struct
import warnings

import numpy as np
import pytest
import slow
from makers import as_events, refused

from ripe_mambaspike.events import RecordingWarning, read, read_chunks


@pytest.fixture
def formats(shared_data):
    return shared_data / "formats"


def after_header(path, sign):
    """The bytes after the lines that start with the sign."""
    return re.sub(rb"\A(?:%s[^\n]*\n)*" % sign, b"", path.read_bytes(), count=1)


@pytest.mark.parametrize(
    ("name", "decode", "sign", "size", "count", "other"),
    [
        ("mnist_0_scale04_0001.aedat", slow.aedat2, b"#", (128, 128), 15_744, 0),
        (
            "davis240_IMU_translBoxes.aedat",
            lambda data: slow.aedat2(data, "DAVIS240C"),
            b"#",
            (240, 180),
            162_771,
            33_837,
        ),
        ("evt2_sample.raw", slow.evt2, b"%", (640, 480), 539_481, 0),
        ("evt3_sample.raw", slow.evt3, b"%", (1280, 720), 219_596, 0),
        ("ncars.dat", lambda data: slow.dat(data[2:]), b"%", (304, 240), 2_009, 0),
    ],
)
def test_every_event_is_the_slow_decoders(formats, name, decode, sign, size, count, other):
    recording = read(formats / name, strict=True)
    events, counts = decode(after_header(formats / name, sign))
    np.testing.assert_array_equal(recording.events, as_events(events))
    assert len(recording) == count
    assert recording.metadata.get("other_words", 0) == counts["other"] == other
    assert recording.sensor_size == size
    assert recording.in_order()
    chunks = read_chunks(formats / name, events=10_000)
    np.testing.assert_array_equal(np.concatenate([chunk.events for chunk in chunks]), recording.events)


def steps_back(data):
    """For every event of an EVT 3.0 file, how often the low part of the time has stepped back before it."""
    passed, kinds = [], []
    high = low = None
    same_high = True
    for (word,) in struct.iter_unpack("<H", data):
        kind, value = word >> 12, word & 0xFFF
        if kind == 8:
            same_high &= value == high
            high = value
        elif kind == 6:
            if low is not None and value < low:
                kinds.append(same_high)
            low, same_high = value, True
        elif kind in (2, 4, 5):
            pixels = 1 if kind == 2 else (value if kind == 4 else value & 0xFF).bit_count()
            passed += [len(kinds)] * pixels
    return np.array(passed), kinds


def test_evt3_and_the_truth_beside_it(formats):
    """The decoder that wrote the truth took every step back of the low part for a wrap of it, and added 4096 µs.

    Nine times it is the camera that ran a few µs ahead and returned, twice the high part has gone on by itself.
    """
    recording = read(formats / "evt3_sample.raw")
    truth = np.load(formats / "evt3_sample.npy")
    assert len(recording) == len(truth) == 219_596
    for name in "xyp":
        np.testing.assert_array_equal(recording[name], truth[name])
    np.testing.assert_array_equal(recording["t"][:20_121], truth["t"][:20_121])
    passed, kinds = steps_back(after_header(formats / "evt3_sample.raw", b"%"))
    assert (kinds.count(True), kinds.count(False)) == (9, 2)
    assert np.flatnonzero(passed)[0] == 20_121
    np.testing.assert_array_equal(recording["t"], truth["t"] - 4096 * passed)


def test_the_truth_is_itself_a_recording(formats):
    recording = read(formats / "evt3_sample.npy", strict=True)
    truth = np.load(formats / "evt3_sample.npy")
    for name in "xytp":
        np.testing.assert_array_equal(recording[name], truth[name])


def test_text_that_ends_in_the_middle_of_a_line(formats):
    path = formats / "slider_depth.txt"
    with pytest.warns(RecordingWarning, match="1 event that was cut off at the end of the file left out"):
        recording = read(path)
    lines = [line.split() for line in path.read_text().splitlines()[:-1]]
    expected = [(int(x), int(y), round(float(t) * 1e6), int(p)) for t, x, y, p in lines]
    np.testing.assert_array_equal(recording.events, as_events(expected))
    assert len(recording) == 19_015
    assert recording.sensor_size == (240, 180)
    assert recording.metadata["time_unit"] == "s"
    refused(path, "strict", "cut off", strict=True)


@pytest.mark.parametrize(
    "gesture", ["01_hand_clap", "02_right_hand_wave", "04_right_arm_cw", "06_left_arm_cw", "09_air_drums"]
)
def test_gestures(shared_data, gesture):
    path = shared_data / "gesture-real" / f"{gesture}.bin"
    recording = read(path, strict=True)
    np.testing.assert_array_equal(recording.events, as_events(slow.atis(path.read_bytes())[0]))
    assert recording.sensor_size == (128, 128)
    assert 1_440_000 < recording.duration_us < 1_450_000
    assert 0.4 < recording["p"].mean() < 0.6


def test_nmnist(shared_data):
    """All 600: the counts of the data's README, and every tenth one event by event."""
    paths = sorted((shared_data / "nmnist-real").rglob("*.bin"))
    events = on = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        for number, path in enumerate(paths):
            recording = read(path)
            assert recording.format == "atis"
            assert recording.sensor_size == (34, 34)
            assert recording.last_us < 400_000
            events, on = events + len(recording), on + int(recording["p"].sum())
            if number % 10 == 0:
                np.testing.assert_array_equal(recording.events, as_events(slow.atis(path.read_bytes())[0]))
    assert len(paths) == 600
    assert events / 600 == pytest.approx(4067, abs=1)
    assert on / events == pytest.approx(0.498, abs=0.001)
