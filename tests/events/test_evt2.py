"""EVT 2.0 against a decoder that takes one word at a time."""

import numpy as np
import pytest
import slow
from makers import as_events, evt2_event, evt2_time, prophesee, words

from ripe_mambaspike.events import read

HEADER = prophesee("2.0")


def random_words(count, seed=0, highs=2**28 - 40):
    """Events and other words between times that go forward, back a little, and through the wrap."""
    random = np.random.default_rng(seed)
    made, high = [], highs
    for _ in range(count):
        kind = random.choice([0, 1, 8, 10, 14, 15], p=[0.4, 0.3, 0.2, 0.05, 0.03, 0.02])
        if kind == 8:
            high += int(random.integers(-1, 4))
            made.append(evt2_time(high % 2**28))
        elif kind < 2:
            made.append(evt2_event(*(int(random.integers(top)) for top in (640, 480, 64)), int(kind)))
        else:
            made.append(int(kind) << 28 | int(random.integers(2**28)))
    return words("I", *made)


@pytest.mark.parametrize("seed", range(4))
def test_every_word_is_the_slow_decoders(read_bytes, seed):
    data = random_words(400, seed)
    expected, counts = slow.evt2(data)
    recording = read_bytes(HEADER + data)
    np.testing.assert_array_equal(recording.events, as_events(expected))
    assert recording.metadata["other_words"] == counts["other"] > 0
    assert recording.last_us > 2**34 > recording.first_us
    early = counts["no time"]
    found = [sentence for sentence in recording.warnings if "came before the first time word" in sentence]
    assert found == (
        [f"{early} event{'s' * (early > 1)} that came before the first time word left out"] if early else []
    )


@pytest.mark.parametrize(("count", "blocks"), [(9_000, (1000,)), pytest.param(70_000, (), marks=pytest.mark.slow)])
def test_more_words_than_a_block_has(read_bytes, count, blocks):
    data = random_words(count, 1)
    np.testing.assert_array_equal(read_bytes(HEADER + data, blocks=blocks).events, as_events(slow.evt2(data)[0]))


def test_events_before_the_first_time_are_counted(read_bytes):
    data = words("I", *[evt2_event(1, 2, 3, 1)] * 3, evt2_time(5), evt2_event(4, 5, 6, 0))
    recording = read_bytes(HEADER + data)
    assert recording.events.tolist() == [(4, 5, 5 * 64 + 6, 0)]
    assert recording.warnings == ("3 events that came before the first time word left out",)


def test_a_clock_that_runs_back_past_its_start_is_still_a_clock(read_bytes):
    data = words("I", evt2_time(1), evt2_event(1, 1, 0, 1), evt2_time(2**28 - 1), *[evt2_event(1, 1, 0, 1)] * 9)
    assert read_bytes(HEADER + data)["t"].tolist() == [64] + [-64] * 9


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (prophesee("2.0", "geometry 320x320"), (320, 320)),
        (b"% format EVT2;width=1280;height=720\n% end\n", (1280, 720)),
        (b"% integrator_name Prophesee\n% width 304\n% height 240\n", (304, 240)),
        (b"% Date 2020\n% system_ID 21\n", (640, 480)),
        (prophesee("2.0", "geometry 0x9"), (640, 480)),
        (prophesee("2.0", f"geometry {'9' * 5000}x9"), (640, 480)),
        (prophesee("2.0", f"width {'9' * 5000}", "height 3"), (640, 480)),
    ],
)
def test_what_the_header_says(saved, header, size):
    recording = read(saved(header + words("I", evt2_time(3), evt2_event(9, 8, 7, 1))))
    assert recording.format == "evt2"
    assert recording.sensor_size == size
    assert recording.events.tolist() == [(9, 8, 3 * 64 + 7, 1)]


def test_a_header_without_an_end_line_before_words_that_start_like_one(saved):
    first = evt2_event(9, 0x25, 0, 0)  # its first byte is that of %
    data = words("I", evt2_time(0x25), first, first)
    assert data[:1] == b"%"
    recording = read(saved(b"% evt 2.0\n" + data))
    np.testing.assert_array_equal(recording.events, as_events(slow.evt2(data)[0]))
