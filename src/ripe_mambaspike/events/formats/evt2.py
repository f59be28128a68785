"""Prophesee EVT 2.0: 32-bit words, the type in the top four bits.

An event (type 0 OFF, 1 ON) has six bits of time, eleven of x, eleven of y; the other 28 bits of time come in words of
their own (type 8) and hold until the next.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.events.formats.prophesee import SIZES, read_prophesee_header, starts_like_one
from ripe_mambaspike.events.recording import EVENT, Events
from ripe_mambaspike.events.source import EventSource, Options, WrappingClock, decode_blocks, hold_last

FORMAT = "evt2"
WORD = np.dtype("<u4")
TIME_HIGH = 8
HIGH_PERIOD = 1 << 28
CLOCK = WrappingClock(HIGH_PERIOD)
UNKNOWN_TIME = -(1 << 50)  # where no time is known yet; a time can be below 0 when the clock runs back from its start
NO_TIME = "came before the first time word"


@dataclass(frozen=True)
class Evt2State:
    clock: WrappingClock = CLOCK
    high: int = UNKNOWN_TIME  # in units of 64 µs, wraps counted


def recognizes(head: bytes, path: Path) -> bool:
    return starts_like_one(head) and read_prophesee_header(path).encoding == FORMAT


def open_source(path: Path, options: Options) -> EventSource:
    header = read_prophesee_header(path)
    source = EventSource(FORMAT, lambda: iter(()), header.sensor_size, dict(header.metadata), SIZES)

    def pieces() -> Iterator[Events]:
        return decode_blocks(path, header.start, WORD, make_decoder(source), Evt2State())

    source.pieces = pieces
    return source


def make_decoder(source: EventSource) -> Callable[[NDArray[np.uint32], Evt2State], tuple[Events, Evt2State]]:
    def decode(words: NDArray[np.uint32], state: Evt2State) -> tuple[Events, Evt2State]:
        kind = words >> np.uint32(28)
        is_event = kind < 2
        time_at = np.flatnonzero(kind == TIME_HIGH)
        event_at = np.flatnonzero(is_event)
        source.count("other_words", len(words) - len(event_at) - len(time_at))
        highs, state = high_times((words[time_at] & np.uint32(HIGH_PERIOD - 1)).astype(np.int64), state)
        event_at = after_first_time(highs, time_at, event_at, source)
        picked = words[event_at]
        events = np.empty(len(picked), EVENT)
        events["x"] = picked >> np.uint32(11) & np.uint32(0x7FF)
        events["y"] = picked & np.uint32(0x7FF)
        events["t"] = hold_last(highs << 6, time_at, event_at) + (picked >> np.uint32(22) & np.uint32(0x3F))
        events["p"] = picked >> np.uint32(28)
        return events, state

    return decode


def high_times(raw: NDArray[np.int64], state: Evt2State) -> tuple[NDArray[np.int64], Evt2State]:
    """The high parts of this block's time words, wraps counted, with the one that held before them in front."""
    times, clock = state.clock.unwrap(raw)
    high = int(times[-1]) if len(times) else state.high
    return np.concatenate([np.array([state.high], np.int64), times]), Evt2State(clock, high)


def after_first_time(
    highs: NDArray[np.int64],
    time_at: NDArray[np.int64],
    event_at: NDArray[np.int64],
    source: EventSource,
    fired: NDArray[np.uint8] | None = None,
) -> NDArray[np.int64]:
    """Without the event words that came before any time was known; their events are counted.

    `fired` has the pixels of each event word, where one stands for several.
    """
    if highs[0] != UNKNOWN_TIME:
        return event_at
    first = int(np.searchsorted(event_at, time_at[0])) if len(time_at) else len(event_at)
    source.leave_out(first if fired is None else np.count_nonzero(fired[:first]), NO_TIME)
    return event_at[first:]
