"""AEDAT 2.0 of the DVS128 and the DAVIS cameras against a decoder that takes one word at a time."""

import struct

import numpy as np
import pytest
import slow
from makers import AEDAT2, DAVIS, as_events, davis, dvs128, refused

from ripe_mambaspike.events.formats import aedat2

END = b"#End Of ASCII Header\r\n"


def wrapping_times(random, count, start):
    """Times that go on through ±2³¹, a few of them a little back."""
    times = start + np.cumsum(random.choice([-3, -1, 0, 5, 2**22, 2**23], count))
    return [int(time) for time in (times + 2**31) % 2**32 - 2**31]


@pytest.mark.parametrize("camera", ["DVS128", "DAVIS240C"])
def test_every_word_is_the_slow_decoders(read_bytes, camera):
    random = np.random.default_rng(2)
    times = wrapping_times(random, 4000, 2**31 - 2**28)
    if camera == "DVS128":
        addresses = random.integers(0, 2**16, 4000)
        header = AEDAT2
    else:
        x, y, rest = random.integers(0, 240, 4000), random.integers(0, 180, 4000), random.integers(0, 2**12, 4000)
        addresses = y << 22 | x << 12 | rest | (random.random(4000) < 0.2).astype(np.int64) << 31
        header = DAVIS
    body = b"".join(struct.pack(">Ii", int(a), t) for a, t in zip(addresses, times, strict=True))
    expected, counts = slow.aedat2(body, camera)
    recording = read_bytes(header + body, blocks=(1, 7))
    np.testing.assert_array_equal(recording.events, as_events(expected))
    assert recording.metadata["other_words"] == counts["other"] > 0
    assert min(times) < 0 < max(times)
    assert np.ptp(recording["t"]) > 2**32


def test_more_words_than_a_block_has(read_bytes):
    random = np.random.default_rng(3)
    body = b"".join(
        dvs128(int(x), int(y), int(t), 1)
        for x, y, t in zip(random.integers(0, 128, 70_000), random.integers(0, 128, 70_000), range(70_000), strict=True)
    )
    np.testing.assert_array_equal(
        read_bytes(AEDAT2 + body, blocks=()).events, as_events(slow.aedat2(body, "DVS128")[0])
    )


@pytest.mark.parametrize(
    ("chip", "size"),
    [
        ("ch.unizh.ini.jaer.chip.retina.DVS128", (128, 128)),
        ("eu.seebetter.ini.chips.davis.DAVIS240C", (240, 180)),
        ("eu.seebetter.ini.chips.davis.Davis346B", (346, 260)),
        ("eu.seebetter.ini.chips.davis.DAVIS208Mono", (208, 192)),
    ],
)
def test_the_camera_of_the_header_says_size_and_layout(read_bytes, chip, size):
    word = (dvs128 if "DVS" in chip else davis)(100, 90, 7, 1)
    recording = read_bytes(AEDAT2 + f"# AEChip: {chip}\r\n".encode() + word)
    assert recording.events.tolist() == [(100, 90, 7, 1)]
    assert recording.sensor_size == size
    assert recording.metadata["camera"] == chip.rsplit(".", 1)[-1]


def test_an_unknown_camera_is_named(saved):
    refused(saved(AEDAT2 + b"# AEChip: x.Cochlea\r\n" + dvs128(1, 1, 1, 1)), "AEChip", "x.Cochlea", *aedat2.CHIPS)


@pytest.mark.parametrize("end", [b"", END])
def test_an_event_that_starts_like_a_comment(read_bytes, end):
    first = davis(100, 141, 294976755, 0)
    assert first[:1] == b"#"
    body = first + davis(3, 140, 294976756, 1) + davis(3, 20, 294976777, 1)
    recording = read_bytes(DAVIS + end + body)
    np.testing.assert_array_equal(recording.events, as_events(slow.aedat2(body, "DAVIS240C")[0]))
    assert len(recording) == 3


def test_after_the_end_line_even_text_is_data(read_bytes):
    body = b"# abcde\n" * 2
    recording = read_bytes(DAVIS + END + body, sensor_size=(1024, 512))
    np.testing.assert_array_equal(recording.events, as_events(slow.aedat2(body, "DAVIS240C")[0]))


@pytest.mark.parametrize("base", ["x", "1.5", "9" * 40])
def test_a_time_base_that_is_no_integer(saved, base):
    refused(saved(AEDAT2 + f"# TimeBase: {base}\r\n".encode() + dvs128(1, 1, 1, 1)), "TimeBase", base)


def test_a_sensor_size_of_zero(saved):
    refused(saved(AEDAT2 + b"# SensorSize: 0x128\r\n" + dvs128(1, 1, 1, 1)), "sensor_size", "0×128")
