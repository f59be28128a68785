"""EVT 2.1, in both orders of its halves, against a decoder that takes one word at a time."""

import numpy as np
import pytest
import slow
from makers import as_events, evt2_event, evt2_time, prophesee, words

HEADER = prophesee("2.1")
BOTH = pytest.mark.parametrize("upper_first", [False, True])


def random_words(count, upper_first, seed=0):
    random = np.random.default_rng(seed)
    made, high = [], 2**28 - 20
    for _ in range(count):
        kind = int(random.choice([0, 1, 8, 10], p=[0.4, 0.3, 0.25, 0.05]))
        lower = int(random.integers(2**32)) & int(random.integers(2**32))
        if kind == 8:
            high += int(random.integers(-1, 3))
            upper, lower = evt2_time(high % 2**28), 0
        elif kind == 10:
            upper = kind << 28 | int(random.integers(2**28))
        else:
            upper = evt2_event(32 * int(random.integers(40)), *(int(random.integers(top)) for top in (720, 64)), kind)
        made += [upper, lower] if upper_first else [lower, upper]
    return words("I", *made)


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_every_word_is_the_slow_decoders(read_bytes, upper_first, seed):
    data = random_words(300, upper_first, seed)
    expected, counts = slow.evt21(data, upper_first)
    recording = read_bytes(HEADER + data)
    np.testing.assert_array_equal(recording.events, as_events(expected))
    assert recording.metadata["upper_half_first"] is upper_first
    assert recording.metadata["other_words"] == counts["other"] > 0
    assert recording.last_us > 2**34 > recording.first_us


@pytest.mark.parametrize(("count", "blocks"), [(9_000, (1000,)), pytest.param(66_000, (), marks=pytest.mark.slow)])
def test_more_words_than_a_block_has(read_bytes, count, blocks):
    data = random_words(count, False, 5)
    np.testing.assert_array_equal(read_bytes(HEADER + data, blocks=blocks).events, as_events(slow.evt21(data)[0]))


@BOTH
def test_events_not_words_before_the_first_time_are_counted(read_bytes, upper_first):
    pairs = [
        (evt2_event(0, 2, 3, 1), 0xFF),
        (evt2_event(0, 2, 3, 1), 0x3),
        (evt2_time(4), 0),
        (evt2_event(32, 5, 6, 0), 5),
    ]
    data = b"".join(words("I", *(pair if upper_first else pair[::-1])) for pair in pairs)
    recording = read_bytes(HEADER + data)
    assert recording.events.tolist() == [(32, 5, 4 * 64 + 6, 0), (34, 5, 4 * 64 + 6, 0)]
    assert recording.warnings == ("10 events that came before the first time word left out",)


def test_all_32_pixels_at_the_last_column(read_bytes):
    data = words("I", 0, evt2_time(1), 0xFFFFFFFF, evt2_event(2047, 2047, 63, 1))
    assert read_bytes(HEADER + data).events.tolist() == [(2047 + i, 2047, 127, 1) for i in range(32)]
