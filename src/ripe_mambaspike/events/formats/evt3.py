"""Prophesee EVT 3.0: 16-bit words that encode only what has changed.

| type | twelve bits | |
|---|---|---|
| 0 | y | valid until the next |
| 2 | polarity, x | one event |
| 3 | polarity, x | where the next vector starts |
| 4, 5 | 12 or 8 pixels | the events of a vector; the next vector continues after it |
| 6 | time, low | valid until the next |
| 8 | time, high | valid until the next; a change resets the low part to 0 |

The time has 24 bits and wraps every 16.8 s.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.formats.evt2 import NO_TIME, UNKNOWN_TIME
from ripe_mambaspike.events.formats.prophesee import has_encoding, open_prophesee
from ripe_mambaspike.events.recording import Events, Recording, pack_events
from ripe_mambaspike.events.registry import register_chunk_encoder, register_format, register_writer
from ripe_mambaspike.events.source import EventSource, ReadOptions, WrappingClock, decode_blocks, hold_last

WORD = np.dtype("<u2")
ROW, SINGLE, BASE, VECTOR_12, VECTOR_8, TIME_LOW, TIME_HIGH = 0, 2, 3, 4, 5, 6, 8
HIGH_PERIOD = 1 << 12
CLOCK = WrappingClock(HIGH_PERIOD)
LIKELY_SIZES = ((1280, 720),)
NO_ROW = "came before the first row word"
NO_BASE = "were of a vector without a start"
COLUMNS = 1 << 11
PAST_END = f"were of a vector that runs past x = {COLUMNS - 1}"
MAX_TIME_WORDS = 1 << 20  # time words written for gaps: 100 days


@dataclass(frozen=True)
class Evt3State:
    """The decoder's state at the end of a block; UNKNOWN_TIME or −1 for values that are not known yet."""

    clock: WrappingClock = CLOCK
    high: int = UNKNOWN_TIME  # in units of 4096 µs, wraps counted
    low: int = 0
    row: int = -1
    base: int = -1  # polarity and x as in the word
    passed: int = 0  # pixels of vectors since the base


@register_format("evt3", title="EVT 3.0", recognizes=has_encoding("evt3"), headerless=True)
def open_evt3(path: Path, options: ReadOptions) -> EventSource:
    header = open_prophesee(path, options)
    offset = header.time_base

    def read_events(source: EventSource) -> Iterator[Events]:
        for events in decode_blocks(path, header.start, WORD, partial(decode_evt3, source=source), Evt3State()):
            events["t"] += offset
            yield events

    return EventSource("evt3", read_events, header.sensor_size, header.metadata, LIKELY_SIZES)


def decode_evt3(words: NDArray[np.uint16], state: Evt3State, source: EventSource) -> tuple[Events, Evt3State]:
    """Words of EVT 3.0 → events and the state after them."""
    kind = (words >> 12).astype(np.uint8)
    value = words & 0xFFF
    is_row, is_base = kind == ROW, kind == BASE
    is_vector = (kind == VECTOR_12) | (kind == VECTOR_8)
    is_time = (kind == TIME_LOW) | (kind == TIME_HIGH)
    # Positions and `take` are several times as fast as masks.
    at, row_at, base_at, time_at = map(np.flatnonzero, ((kind == SINGLE) | is_vector, is_row, is_base, is_time))
    value_at = value.take(at)
    source.count("other_words", len(words) - sum(map(len, (at, row_at, base_at, time_at))))

    times, clock, high, low = _times(kind.take(time_at) == TIME_HIGH, value.take(time_at).astype(np.int64), state)
    rows = np.concatenate([np.array([state.row], np.int32), (value.take(row_at) & 0x7FF).astype(np.int32)])
    bases = np.concatenate([np.array([state.base], np.int32), value.take(base_at).astype(np.int32)])
    time, row = _held(times, is_time, at), _held(rows, is_row, at)
    x, p = (value_at & 0x7FF).astype(np.int32), value_at >> 11
    known = np.ones(len(at), bool)
    passed = 0 if len(bases) > 1 else state.passed
    if is_vector.any():
        vectors = np.flatnonzero(is_vector.take(at))
        vector_at = at.take(vectors)
        base = _held(bases, is_base, vector_at)
        wide = kind.take(vector_at) == VECTOR_12
        offset, passed = _offsets(wide, base_at, vector_at, state.passed)
        x[vectors] = (base & 0x7FF) + offset
        p[vectors] = base >> 11 & 1
        known[vectors] = base >= 0
        # A single event is a vector of one pixel.
        pixels = np.ones(len(at), np.uint16)
        pixels[vectors] = np.where(wide, value_at[vectors], value_at[vectors] & 0xFF)
        word, bit = _expand(pixels)
        x, p, time, row, known = (one.take(word) for one in (x, p, time, row, known))
        x += bit

    inside = (x < COLUMNS) | ~known
    if not inside.all():
        source.leave_out(np.count_nonzero(~inside), PAST_END)
        x, p, time, row, known = x[inside], p[inside], time[inside], row[inside], known[inside]
    events = pack_events(x, row, time, p)
    if state.high == UNKNOWN_TIME or state.row < 0 or not known.all():
        events = _known(events, time == UNKNOWN_TIME, row < 0, ~known, source)
    return events, Evt3State(clock, high, low, int(rows[-1]), int(bases[-1]), passed)


def _held(values: NDArray[Any], changes: NDArray[np.bool_], at: NDArray[np.int64]) -> NDArray[Any]:
    """The value valid at each position: `values[0]` before the first change, `values[1 + i]` from change i on."""
    return values.take(np.cumsum(changes, dtype=np.int32).take(at))


def _offsets(
    wide: NDArray[np.bool_], base_at: NDArray[np.int64], vector_at: NDArray[np.int64], passed: int
) -> tuple[NDArray[np.int64], int]:
    """The offset of each vector from its base, by the vectors between them, and the offset of the next one."""
    ends = np.cumsum(np.where(wide, 12, 8))
    begins = np.concatenate([[0], ends])
    at_base = begins[np.searchsorted(vector_at, base_at)]
    reference = hold_last(np.concatenate([[-passed], at_base]), base_at, vector_at)
    last = int(at_base[-1]) if len(at_base) else -passed
    return begins[:-1] - reference, int(ends[-1]) - last


def _times(
    is_high: NDArray[np.bool_], value: NDArray[np.int64], state: Evt3State
) -> tuple[NDArray[np.int64], WrappingClock, int, int]:
    """The time after each time word (the previous one first), then clock, high and low part at the end."""
    highs, clock = state.clock.unwrap(value.take(np.flatnonzero(is_high)))
    highs = np.concatenate([np.array([state.high], np.int64), highs])
    number = np.zeros(len(value) + 1, np.int32)  # of high words so far
    np.cumsum(is_high, out=number[1:])
    high = highs.take(number)
    # The low part is set by its own words, and to 0 by a high part that differs from the last.
    sets = ~is_high
    sets |= high[1:] != high[:-1]
    set_by = np.flatnonzero(sets)
    lows = np.zeros(len(set_by) + 1, np.int64)
    lows[0], lows[1:] = state.low, value.take(set_by)
    lows[1:][is_high.take(set_by)] = 0
    np.cumsum(sets, out=number[1:])
    low = lows.take(number)
    times = (high << 12) | low
    if highs[0] == UNKNOWN_TIME:
        times[high == UNKNOWN_TIME] = UNKNOWN_TIME
    return times, clock, int(high[-1]), int(low[-1])


def _expand(pixels: NDArray[np.uint16]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(word, bit) of every pixel that fired, in order."""
    counts = COUNTS.take(pixels)
    ends = np.cumsum(counts)
    place = np.repeat(12 * pixels.astype(np.int64) - (ends - counts), counts)  # in BITS, less the number of the pixel
    place += np.arange(len(place))
    return np.repeat(np.arange(len(pixels)), counts), BITS.take(place)


def _known(
    events: Events,
    no_time: NDArray[np.bool_],
    no_row: NDArray[np.bool_],
    no_base: NDArray[np.bool_],
    source: EventSource,
) -> Events:
    """Drop and count the events whose time, row or vector start is not known yet."""
    source.leave_out(np.count_nonzero(no_time), NO_TIME)
    source.leave_out(np.count_nonzero(no_row & ~no_time), NO_ROW)
    source.leave_out(np.count_nonzero(no_base & ~no_row & ~no_time), NO_BASE)
    return events[~(no_time | no_row | no_base)]


def _bit_tables() -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The number of set bits of each 12-bit value; and their indices, lowest first, 12 places a value."""
    values = np.arange(1 << 12)
    is_set = (values[:, None] >> np.arange(12) & 1).astype(bool)
    order = np.argsort(~is_set, axis=1, kind="stable").astype(np.uint8)
    return is_set.sum(1), order.ravel()


COUNTS, BITS = _bit_tables()


@register_writer(".raw")
def encode_evt3(recording: Recording) -> Iterator[bytes]:
    """Encode as single events."""
    yield Evt3Encoder(recording.sensor_size, recording.first_us).encode(recording.events)


@register_chunk_encoder(".raw")
class Evt3Encoder:
    """Encodes single events. The header line `time_base` holds what does not fit into 24 bits of time."""

    def __init__(self, sensor_size: tuple[int, int], first_us: int) -> None:
        width, height = sensor_size
        if width > 2048 or height > 2048:
            raise InputError.expected("sensor_size", "at most 2048×2048 for EVT 3.0", f"{width}×{height}")
        self._base = first_us // (HIGH_PERIOD << 12) * (HIGH_PERIOD << 12)
        if self._base < 0:
            raise InputError.expected("t", "times from 0 on for EVT 3.0", f"{first_us} µs")
        self._header = (
            f"% evt 3.0\n% format EVT3;height={height};width={width}\n% geometry {width}x{height}\n"
            f"% time_base {self._base}\n% end\n"
        ).encode()
        self._last: tuple[int, int, int] | None = None  # high and low part of the time, and row
        self._gap_words = 0

    def encode(self, events: Events) -> bytes:
        if not len(events):
            return b""
        times = events["t"].astype(np.int64) - self._base
        highs, lows, rows = times >> 12, times & 0xFFF, events["y"].astype(np.int64)
        last_high, last_low, last_row = self._last or (0, -1, -1)
        # The clock may not jump by half its period or more between two time words: step through longer gaps.
        jumps = np.diff(highs, prepend=last_high)
        new_high = jumps != 0
        new_high[0] |= self._last is None
        new_low = new_high | (np.diff(lows, prepend=last_low) != 0)
        new_row = np.diff(rows, prepend=last_row) != 0
        if (jumps < -(HIGH_PERIOD // 2) + 1).any():
            raise InputError.expected("t", "times that run back by at most 8 s for EVT 3.0", "a longer way back")
        steps = np.maximum(0, (jumps - 1) // (HIGH_PERIOD // 2 - 1))
        gap_words = self._gap_words + int(steps.sum())
        if gap_words > MAX_TIME_WORDS:
            seconds = gap_words * HIGH_PERIOD // 2 * 4096 // 1_000_000
            wanted = f"gaps of at most {MAX_TIME_WORDS:,} time words for EVT 3.0"
            raise InputError.expected("t", wanted, f"{seconds:,} s")
        counts = steps + new_high + new_low + new_row + 1
        ends = np.cumsum(counts)
        words = np.empty(int(ends[-1]), WORD)
        words[ends - 1] = SINGLE << 12 | events["p"].astype(np.uint16) << 11 | events["x"]
        position = ends - 2
        words[position[new_row]] = ROW << 12 | rows[new_row]
        position -= new_row
        words[position[new_low]] = TIME_LOW << 12 | lows[new_low]
        position -= new_low
        words[position[new_high]] = TIME_HIGH << 12 | highs[new_high] % HIGH_PERIOD
        for index in np.flatnonzero(steps):
            first = ends[index] - counts[index]
            passed = highs[index] - jumps[index] + (HIGH_PERIOD // 2 - 1) * np.arange(1, steps[index] + 1)
            words[first : first + steps[index]] = TIME_HIGH << 12 | passed % HIGH_PERIOD
        header = self._header if self._last is None else b""
        self._last, self._gap_words = (int(highs[-1]), int(lows[-1]), int(rows[-1])), gap_words
        return header + words.tobytes()

    def new_header(self) -> bytes | None:
        return None
