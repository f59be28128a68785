"""Prophesee EVT 2.0 and 2.1: words with the type in the top four bits (0 OFF, 1 ON, 8 time).

| | word | event |
|---|---|---|
| 2.0 | 32 bits | six bits of time, eleven of x, eleven of y |
| 2.1 | 64 bits | the same, then 32 bits: which of the 32 pixels from x on fired |

The other 28 bits of time come in separate words, valid until the next one. In EVT 2.1 the GenX320 sends a word as
one little-endian number, the IMX636 sends its upper half first; time words, whose lower half is empty, show which.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.events.formats.prophesee import SIZES, has_encoding, open_prophesee
from ripe_mambaspike.events.recording import Events, pack_events
from ripe_mambaspike.events.registry import register_format
from ripe_mambaspike.events.source import EventSource, ReadOptions, WrappingClock, blocks, decode_blocks, hold_last

WORD = np.dtype("<u4")
DOUBLE_WORD = np.dtype([("first", "<u4"), ("second", "<u4")])
TIME_HIGH = 8
HIGH_PERIOD = 1 << 28
UNKNOWN_TIME = -(1 << 50)  # a time can be below 0 when the clock runs back from its start
NO_TIME = "came before the first time word"


@dataclass(frozen=True)
class Evt2State:
    """The decoder's state at the end of a block."""

    clock: WrappingClock = WrappingClock(HIGH_PERIOD)  # noqa: RUF009  (frozen)
    high: int = UNKNOWN_TIME  # in units of 64 µs, wraps counted


@register_format("evt2", title="EVT 2.0", recognizes=has_encoding("evt2"), headerless=True)
def open_evt2(path: Path, options: ReadOptions) -> EventSource:
    header = open_prophesee(path, options)

    def read_events(source: EventSource) -> Iterator[Events]:
        return decode_blocks(path, header.start, WORD, partial(decode_evt2, source=source), Evt2State())

    return EventSource("evt2", read_events, header.sensor_size, header.metadata, SIZES)


@register_format("evt21", title="EVT 2.1", recognizes=has_encoding("evt21"), headerless=True)
def open_evt21(path: Path, options: ReadOptions) -> EventSource:
    header = open_prophesee(path, options)

    def read_events(source: EventSource) -> Iterator[Events]:
        source.metadata["upper_half_first"] = upper_first = _is_upper_first(path, header.start)
        decode = partial(decode_evt21, source=source, upper_first=upper_first)
        return decode_blocks(path, header.start, DOUBLE_WORD, decode, Evt2State())

    return EventSource("evt21", read_events, header.sensor_size, header.metadata, ((320, 320), *SIZES))


def _is_upper_first(path: Path, start: int) -> bool:
    """Whether words have their upper half first: the order in which more of the first block are time words."""
    return next((surplus_upper_first(words) > 0 for words in blocks(path, start, DOUBLE_WORD)), False)


def surplus_upper_first(words: NDArray[np.void]) -> int:
    """How many more of the words are time words with their upper half first than with their lower half first."""
    as_sent = np.count_nonzero((words["second"] >> 28 == TIME_HIGH) & (words["first"] == 0))
    swapped = np.count_nonzero((words["first"] >> 28 == TIME_HIGH) & (words["second"] == 0))
    return int(swapped) - int(as_sent)


def decode_evt2(words: NDArray[np.uint32], state: Evt2State, source: EventSource) -> tuple[Events, Evt2State]:
    """Words of EVT 2.0 → events and the state after them."""
    highs, time_at, event_at, first, state = _split_words(words, state, source)
    source.leave_out(first, NO_TIME)
    event_at = event_at[first:]
    picked = words[event_at]
    times = hold_last(highs << 6, time_at, event_at) + (picked >> 22 & 0x3F)
    return pack_events(picked >> 11 & 0x7FF, picked & 0x7FF, times, picked >> 28), state


def decode_evt21(
    words: NDArray[np.void], state: Evt2State, source: EventSource, upper_first: bool
) -> tuple[Events, Evt2State]:
    """Words of EVT 2.1 → events and the state after them."""
    upper, mask = (words["first"], words["second"]) if upper_first else (words["second"], words["first"])
    highs, time_at, word_at, first, state = _split_words(upper, state, source)
    fired = np.unpackbits(mask[word_at].astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    source.leave_out(np.count_nonzero(fired[:first]), NO_TIME)
    word_at = word_at[first:]
    picked = upper[word_at]
    times = hold_last(highs << 6, time_at, word_at) + (picked >> 22 & 0x3F)
    row, bit = np.nonzero(fired[first:])
    x = (picked >> 11 & 0x7FF)[row] + bit
    return pack_events(x, (picked & 0x7FF)[row], times[row], (picked >> 28)[row]), state


def _split_words(
    words: NDArray[np.uint32], state: Evt2State, source: EventSource
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int, Evt2State]:
    """High times (the previous one first), the positions of time and of event words, how many of the latter come before
    the first time word, and the new state."""
    kind = words >> 28
    time_at, event_at = np.flatnonzero(kind == TIME_HIGH), np.flatnonzero(kind < 2)
    source.count("other_words", len(words) - len(event_at) - len(time_at))
    times, clock = state.clock.unwrap((words[time_at] & (HIGH_PERIOD - 1)).astype(np.int64))
    high = int(times[-1]) if len(times) else state.high
    first = 0
    if state.high == UNKNOWN_TIME:
        first = int(np.searchsorted(event_at, time_at[0])) if len(time_at) else len(event_at)
    highs = np.concatenate([np.array([state.high], np.int64), times])
    return highs, time_at, event_at, first, Evt2State(clock, high)
