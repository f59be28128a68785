"""What format modules return, and what they share: reading blocks of words, time wraps, forward-filled values."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError, ReadError
from ripe_mambaspike.events.recording import EVENT, SIZE_EXPECTED, Events, is_size

BLOCK_WORDS = 1 << 16  # words decoded at a time, so that intermediate arrays stay in the CPU cache
MAX_ROW_BYTES = 1 << 10  # of one event, including extra columns
MAX_TIME = 1 << 62  # µs, positive or negative, so that differences fit into int64
BASE_EVENT_BYTES = 1 << 28  # events that any file may decode to, however small it is
MAX_EXPANSION = 200  # bytes of events per byte of file beyond that; real formats reach 78
TIME_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}

DecoderState = TypeVar("DecoderState")


@dataclass(frozen=True)
class ReadOptions:
    """Values that the caller gives for what the file does not store."""

    sensor_size: tuple[int, int] | None = None
    time_unit: str | None = None  # of formats that do not fix it: s, ms, us or ns

    def __post_init__(self) -> None:
        if self.time_unit is not None and self.time_unit not in TIME_UNITS:
            raise InputError.expected("time_unit", f"one of {', '.join(TIME_UNITS)}", repr(self.time_unit))
        if self.sensor_size is not None and not is_size(self.sensor_size):
            raise InputError.expected("sensor_size", SIZE_EXPECTED, self.sensor_size)


@dataclass
class EventSource:
    """An opened recording: its header, and its events in chunks, in the order of the file."""

    format: str
    reader: Callable[["EventSource"], Iterator[Events]]  # gets this source, to count what it leaves out
    sensor_size: tuple[int, int] | None = None  # None when the format does not say
    metadata: dict[str, Any] = field(default_factory=dict)
    likely_sizes: tuple[tuple[int, int], ...] = ()  # of sensors that write this format
    # Events left out so far, by reason.
    left_out: dict[str, int] = field(default_factory=dict)

    def pieces(self) -> Iterator[Events]:
        return self.reader(self)

    def leave_out(self, count: int | np.integer[Any], why: str) -> None:
        if count:
            self.left_out[why] = self.left_out.get(why, 0) + int(count)

    def count(self, name: str, number: int | np.integer[Any]) -> None:
        """Add to a counter of the metadata."""
        if number:
            self.metadata[name] = self.metadata.get(name, 0) + int(number)


def blocks(path: Path, start: int, dtype: np.dtype[Any], count: int = BLOCK_WORDS) -> Iterator[NDArray[Any]]:
    """The words from a byte on, a block at a time. A block is overwritten by the next one."""
    size = path.stat().st_size
    if (size - start) % dtype.itemsize:
        raise ReadError.expected(
            "size", f"whole words of {dtype.itemsize} bytes from byte {start} on", f"a file cut off at byte {size}"
        )
    buffer = np.empty(count, dtype)
    view = memoryview(buffer.view(np.uint8))  # type: ignore[arg-type]
    with path.open("rb") as file:
        file.seek(start)
        while got := file.readinto(view):
            yield buffer[: got // dtype.itemsize]


def check_expansion(events: int, size: int) -> None:
    """Refuse more events than a file of this size may hold: a compressed or sparse file can claim any number."""
    most = max(BASE_EVENT_BYTES, MAX_EXPANSION * size) // EVENT.itemsize
    if events > most:
        raise ReadError.expected("events", f"at most {most:,} in a file of {size:,} bytes", f"{events:,} or more")


def decode_blocks(
    path: Path,
    start: int,
    dtype: np.dtype[Any],
    decode: Callable[[NDArray[Any], DecoderState], tuple[Events, DecoderState]],
    state: DecoderState,
) -> Iterator[Events]:
    """The events of a file of words, the decoder's state carried from block to block."""
    for words in blocks(path, start, dtype):
        events, state = decode(words, state)
        yield events


@dataclass(frozen=True)
class WrappingClock:
    """A counter that wraps: the last raw value, and the sum of all wraps."""

    period: int
    last: int | None = None
    offset: int = 0

    def unwrap(self, raw: NDArray[np.int64]) -> tuple[NDArray[np.int64], "WrappingClock"]:
        """Raw counts → continuous times. A backward jump of more than half the period is a wrap."""
        if not len(raw):
            return raw, self
        last = int(raw[0]) if self.last is None else self.last
        half = self.period // 2
        steps = np.empty_like(raw)
        steps[0] = raw[0] - last
        np.subtract(raw[1:], raw[:-1], out=steps[1:])
        down = steps < -half
        up = steps > half
        final = int(raw[-1])
        if not (down.any() or up.any()):
            return raw + self.offset, WrappingClock(self.period, final, self.offset)
        offsets = self.offset + self.period * np.cumsum(down.astype(np.int64) - up)
        return raw + offsets, WrappingClock(self.period, final, int(offsets[-1]))


def hold_last(values: NDArray[Any], changed_at: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[Any]:
    """The value valid at each position: `values[0]` before the first change, `values[1 + i]` from change i on."""
    bounds = np.searchsorted(positions, changed_at)
    counts = np.diff(bounds, prepend=0, append=len(positions))
    return np.repeat(values, counts)


def empty_events() -> Events:
    return np.empty(0, EVENT)
