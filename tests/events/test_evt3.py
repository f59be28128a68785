"""EVT 3.0 against a decoder that takes one word at a time."""

import numpy as np
import pytest
import slow
from makers import as_events, prophesee, refused, words

HEADER = prophesee("3.0")
SENTENCES = {
    "no time": "came before the first time word",
    "no row": "came before the first row word",
    "no base": "were of a vector without a start",
    "past the end": "were of a vector that runs past x = 2047",
}


def row(y):
    return y


def single(x, p):
    return 2 << 12 | p << 11 | x


def base(x, p):
    return 3 << 12 | p << 11 | x


def twelve(pixels):
    return 4 << 12 | pixels


def eight(pixels):
    return 5 << 12 | pixels


def low(time):
    return 6 << 12 | time


def high(time):
    return 8 << 12 | time


def random_words(count, seed):
    """Words in any order, more often those that make events; times go forward, now and then back, and wrap."""
    random = np.random.default_rng(seed)
    made, now = [], 4090 << 12
    shares = np.array([10, 1, 20, 6, 20, 10, 15, 1, 15, 1, 1])
    for _ in range(count):
        kind = int(random.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 15], p=shares / shares.sum()))
        value = int(random.integers(4096))
        if kind == 6:
            now += int(random.integers(-20, 500))
            value = now & 4095
        elif kind == 8:
            now += int(random.choice([0, 0, 4096, 9000, -4096]))
            value = now >> 12 & 4095
        made.append(kind << 12 | value)
    return words("H", *made)


@pytest.mark.parametrize("seed", range(6))
def test_every_word_is_the_slow_decoders(read_bytes, seed):
    data = random_words(600, seed)
    expected, counts = slow.evt3(data)
    recording = read_bytes(HEADER + data, blocks=(1, 2, 3, 7, 64))
    np.testing.assert_array_equal(recording.events, as_events(expected))
    assert recording.metadata["other_words"] == counts["other"] > 0
    for why, sentence in SENTENCES.items():
        found = [warning for warning in recording.warnings if sentence in warning]
        assert [int(warning.split()[0]) for warning in found] == ([counts[why]] if counts[why] else [])
    assert recording.last_us > 2**24


@pytest.mark.parametrize(("count", "blocks"), [(9_000, (1000,)), pytest.param(140_000, (), marks=pytest.mark.slow)])
def test_more_words_than_a_block_has(read_bytes, count, blocks):
    data = random_words(count, 9)
    expected, _ = slow.evt3(data)
    np.testing.assert_array_equal(read_bytes(HEADER + data, blocks=blocks).events, as_events(expected))


def times(read_bytes, *parts):
    """The times of the events between time words."""
    recording = read_bytes(HEADER + words("H", row(5), *parts))
    return recording["t"].tolist()


EVENT = single(7, 1)


def test_the_same_high_part_again_keeps_the_low_part(read_bytes):
    assert times(read_bytes, high(3), low(100), EVENT, high(3), EVENT, low(90), EVENT) == [12388, 12388, 12378]


def test_another_high_part_starts_the_low_part_at_zero(read_bytes):
    assert times(read_bytes, high(3), low(100), EVENT, high(4), EVENT, low(1), EVENT) == [12388, 16384, 16385]


def test_a_low_part_that_steps_back_is_no_wrap(read_bytes):
    assert times(read_bytes, high(3), low(4095), EVENT, low(4090), EVENT, high(4), low(0), EVENT) == [
        16383,
        16378,
        16384,
    ]


def test_the_high_part_wraps_every_16_seconds(read_bytes):
    parts = [part for turn in range(3) for value in (0, 2000, 4000) for part in (high(value), low(turn), EVENT)]
    expected = [(turn * 4096 + value) * 4096 + turn for turn in range(3) for value in (0, 2000, 4000)]
    assert times(read_bytes, *parts) == expected


def test_a_clock_that_runs_back_past_its_start_is_still_a_clock(read_bytes):
    assert times(read_bytes, high(0), EVENT, high(4095), EVENT, low(5), EVENT) == [0, -4096, -4091]


def test_vectors_go_on_after_each_other_until_the_next_start(read_bytes):
    parts = [high(1), row(9), base(100, 1), twelve(0x801), twelve(0x002), eight(0x81), eight(0xF00 | 0x01)]
    parts += [single(50, 0), eight(0x01), base(4, 0), eight(0x03), row(10), twelve(0x001)]
    recording = read_bytes(HEADER + words("H", *parts))
    assert [(x, y, p) for x, y, _, p in recording.events.tolist()] == [
        (100, 9, 1),
        (111, 9, 1),
        (113, 9, 1),
        (124, 9, 1),
        (131, 9, 1),
        (132, 9, 1),
        (50, 9, 0),
        (140, 9, 1),
        (4, 9, 0),
        (5, 9, 0),
        (12, 10, 0),
    ]


def test_a_vector_cannot_come_round_again(read_bytes):
    """Thousands of vectors without a new start would take x through 65536 and back into the picture."""
    parts = [high(1), row(0), base(0, 1)] + [twelve(0xFFF)] * 6000
    recording = read_bytes(HEADER + words("H", *parts), blocks=(1000,))
    assert recording["x"].tolist() == list(range(2048))
    assert recording.warnings == ("69,952 events that were of a vector that runs past x = 2047 left out",)


def test_a_row_has_eleven_bits(read_bytes):
    recording = read_bytes(HEADER + words("H", high(1), row(1 << 11 | 719), EVENT))
    assert recording.events.tolist() == [(7, 719, 4096, 1)]


@pytest.mark.parametrize(
    ("line", "added"), [("time_base 16777216", 2**24), ("time_base x", 0), (f"time_base {'9' * 30}", 0)]
)
def test_the_time_base_of_our_own_files(read_bytes, line, added):
    recording = read_bytes(prophesee("3.0", line) + words("H", high(1), row(1), EVENT))
    assert recording["t"].tolist() == [4096 + added]


def test_only_events_without_a_time(saved):
    path = saved(HEADER + words("H", row(1), EVENT, EVENT), "a.raw")
    refused(path, "events", "none (2 events that came before the first time word")
