"""Prophesee EVT 2.0: 32-bit words, the type in the top four bits.

An event (type 0 OFF, 1 ON) has six bits of time, eleven of x, eleven of y; the other 28 bits of time come in words of
their own (type 8) and hold until the next.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.events.formats.prophesee import SIZES, read_header, starts_like_one
from ripe_mambaspike.events.recording import EVENT, Events
from ripe_mambaspike.events.source import Clock, Options, Source, decode_blocks, held

FORMAT = "evt2"
WORD = np.dtype("<u4")
TIME_HIGH = 8
HIGHS = 1 << 28
CLOCK = Clock(HIGHS)
NEVER = -(1 << 50)  # where no time is known yet; a time can be below 0 when the clock runs back from its start
NO_TIME = "came before the first time word"


@dataclass(frozen=True)
class State:
    clock: Clock = CLOCK
    high: int = NEVER  # in units of 64 µs, wraps counted


def recognizes(head: bytes, path: Path) -> bool:
    return starts_like_one(head) and read_header(path).encoding == FORMAT


def open_source(path: Path, options: Options) -> Source:
    header = read_header(path)
    source = Source(FORMAT, lambda: iter(()), header.sensor_size, dict(header.metadata), SIZES)

    def pieces() -> Iterator[Events]:
        return decode_blocks(path, header.start, WORD, make_decoder(source), State())

    source.pieces = pieces
    return source


def make_decoder(source: Source) -> Callable[[NDArray[np.uint32], State], tuple[Events, State]]:
    def decode(words: NDArray[np.uint32], state: State) -> tuple[Events, State]:
        kind = words >> np.uint32(28)
        is_event = kind < 2
        time_at = np.flatnonzero(kind == TIME_HIGH)
        event_at = np.flatnonzero(is_event)
        source.count("other_words", len(words) - len(event_at) - len(time_at))
        highs, state = high_times((words[time_at] & np.uint32(HIGHS - 1)).astype(np.int64), state)
        event_at = after_first_time(highs, time_at, event_at, source)
        picked = words[event_at]
        events = np.empty(len(picked), EVENT)
        events["x"] = picked >> np.uint32(11) & np.uint32(0x7FF)
        events["y"] = picked & np.uint32(0x7FF)
        events["t"] = held(highs << 6, time_at, event_at) + (picked >> np.uint32(22) & np.uint32(0x3F))
        events["p"] = picked >> np.uint32(28)
        return events, state

    return decode


def high_times(raw: NDArray[np.int64], state: State) -> tuple[NDArray[np.int64], State]:
    """The high parts of this block's time words, wraps counted, with the one that held before them in front."""
    times, clock = state.clock.unwrap(raw)
    high = int(times[-1]) if len(times) else state.high
    return np.concatenate([np.array([state.high], np.int64), times]), State(clock, high)


def after_first_time(
    highs: NDArray[np.int64],
    time_at: NDArray[np.int64],
    event_at: NDArray[np.int64],
    source: Source,
    fired: NDArray[np.uint8] | None = None,
) -> NDArray[np.int64]:
    """Without the event words that came before any time was known; their events are counted.

    `fired` has the pixels of each event word, where one stands for several.
    """
    if highs[0] != NEVER:
        return event_at
    first = int(np.searchsorted(event_at, time_at[0])) if len(time_at) else len(event_at)
    source.leave_out(first if fired is None else np.count_nonzero(fired[:first]), NO_TIME)
    return event_at[first:]
