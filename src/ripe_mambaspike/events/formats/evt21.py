"""Prophesee EVT 2.1: 64-bit words; an event word stands for up to 32 pixels in a row.

From the top: type (0 OFF, 1 ON, 8 time), six bits of time, eleven of x, eleven of y, and 32 bits that say which of the
pixels from x on fired. The GenX320 sends a word as one little-endian number, the IMX636 its upper half first: the time
words, whose lower half is empty, tell which it is.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.events.formats.evt2 import HIGH_PERIOD, TIME_HIGH, Evt2State, after_first_time, high_times
from ripe_mambaspike.events.formats.prophesee import read_prophesee_header, starts_like_one
from ripe_mambaspike.events.recording import EVENT, Events
from ripe_mambaspike.events.source import EventSource, Options, blocks, decode_blocks, hold_last

FORMAT = "evt21"
WORD = np.dtype([("first", "<u4"), ("second", "<u4")])
LIKELY_SIZES = ((320, 320), (640, 480), (1280, 720))


def recognizes(head: bytes, path: Path) -> bool:
    return starts_like_one(head) and read_prophesee_header(path).encoding == FORMAT


def open_source(path: Path, options: Options) -> EventSource:
    header = read_prophesee_header(path)
    source = EventSource(FORMAT, lambda: iter(()), header.sensor_size, dict(header.metadata), LIKELY_SIZES)

    def pieces() -> Iterator[Events]:
        upper_first = is_upper_first(path, header.start)
        source.metadata["upper_half_first"] = upper_first
        decode = make_decoder(source, upper_first)
        return decode_blocks(path, header.start, WORD, decode, Evt2State())

    source.pieces = pieces
    return source


def is_upper_first(path: Path, start: int) -> bool:
    """By the first block of words: in which order more of them look like time words."""
    for words in blocks(path, start, WORD):
        as_sent = np.count_nonzero((words["second"] >> 28 == TIME_HIGH) & (words["first"] == 0))
        swapped = np.count_nonzero((words["first"] >> 28 == TIME_HIGH) & (words["second"] == 0))
        return bool(swapped > as_sent)
    return False


def make_decoder(
    source: EventSource, upper_first: bool
) -> Callable[[NDArray[np.void], Evt2State], tuple[Events, Evt2State]]:
    def decode(words: NDArray[np.void], state: Evt2State) -> tuple[Events, Evt2State]:
        upper, mask = (words["first"], words["second"]) if upper_first else (words["second"], words["first"])
        kind = upper >> 28
        time_at = np.flatnonzero(kind == TIME_HIGH)
        word_at = np.flatnonzero(kind < 2)
        source.count("other_words", len(words) - len(word_at) - len(time_at))
        highs, state = high_times((upper[time_at] & (HIGH_PERIOD - 1)).astype(np.int64), state)
        fired = np.unpackbits(mask[word_at].astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
        known = after_first_time(highs, time_at, word_at, source, fired)
        times = hold_last(highs << 6, time_at, known) + (upper[known] >> 22 & 0x3F)
        row, bit = np.nonzero(fired[len(word_at) - len(known) :])
        picked = upper[known]
        events = np.empty(len(row), EVENT)
        events["x"] = (picked >> 11 & 0x7FF)[row] + bit
        events["y"] = (picked & 0x7FF)[row]
        events["t"] = times[row]
        events["p"] = (picked >> 28)[row]
        return events, state

    return decode
