"""40-bit ATIS events (`.bin`): N-MNIST, N-Caltech101.

Five bytes per event: x; y; polarity in the top bit; 23 bits of time, most significant first. A record with y = 240 is
an overflow: it adds 2¹³ µs to all later times. There is no header and no magic number, so the format is recognized by
its content: a whole number of records whose times do not jump.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events, Recording, pack_events
from ripe_mambaspike.events.registry import register_chunk_encoder, register_format, register_writer
from ripe_mambaspike.events.source import EventSource, ReadOptions, decode_blocks

WORD = np.dtype(("u1", 5))
OVERFLOW_ROW = 240
OVERFLOW = 1 << 13
TIME_PERIOD = 1 << 23
MAX_JUMP_US = 1_000_000  # µs between two events
MAX_OVERFLOWS = 1 << 22  # 9.5 hours
LIKELY_SIZES = ((34, 34), (128, 128), (240, 180), (304, 240))


def _recognizes(head: bytes, path: Path) -> bool:
    """Whether the times of the first thousand events increase or, for files named `.bin`, do not jump back."""
    size = path.stat().st_size
    whole = head[: min(len(head), 5000) // 5 * 5]
    if not whole or size % 5:
        # A truncated file is still recognized by its name, so that the error can say what is wrong with it.
        return path.suffix.lower() == ".bin" and size > 0
    events, _ = decode_atis(np.frombuffer(whole, np.uint8).reshape(-1, 5), 0)
    steps = np.diff(events["t"])
    if path.suffix.lower() == ".bin":
        return len(steps) == 0 or bool(np.mean(steps > -MAX_JUMP_US) > 0.95)
    return len(steps) >= 16 and bool(np.mean((steps >= 0) & (steps < MAX_JUMP_US)) > 0.95)


@register_format("atis", title="40-bit ATIS", recognizes=_recognizes, order=2, headerless=True)
def open_atis(path: Path, options: ReadOptions) -> EventSource:
    return EventSource("atis", lambda source: decode_blocks(path, 0, WORD, decode_atis, 0), likely_sizes=LIKELY_SIZES)


def decode_atis(words: NDArray[np.uint8], offset: int) -> tuple[Events, int]:
    """Bytes [n, 5] and the sum of the overflows before them → events and the sum after them."""
    # The last four bytes of every record as one number: y in the first byte, then polarity and time.
    tails = np.ndarray((len(words),), ">u4", np.ascontiguousarray(words), offset=1, strides=(5,)).astype(np.uint32)
    overflow = tails >= OVERFLOW_ROW << 24
    overflow &= tails < (OVERFLOW_ROW + 1) << 24
    times: NDArray[np.int64 | np.uint32] = tails & (TIME_PERIOD - 1)
    if overflow.any():
        offsets = offset + OVERFLOW * np.cumsum(overflow)
        kept = ~overflow
        words, times, offset = words[kept], (times + offsets)[kept], int(offsets[-1])
    elif offset:
        times = times + np.int64(offset)
    return pack_events(words[:, 0], words[:, 1], times, words[:, 2] >> 7), offset


@register_writer(".bin")
def encode_atis(recording: Recording) -> Iterator[bytes]:
    if len(recording):
        yield AtisEncoder(recording.sensor_size, recording.first_us).encode(recording.events)


@register_chunk_encoder(".bin")
class AtisEncoder:
    """Writes as few overflow events as needed; they can only increase the time."""

    def __init__(self, sensor_size: tuple[int, int], first_us: int) -> None:
        self._overflows = 0  # written so far

    def encode(self, events: Events) -> bytes:
        if not len(events):
            return b""
        if events["x"].max() > 255 or events["y"].max() >= OVERFLOW_ROW:
            corner = f"events at x = {events['x'].max()}, y = {events['y'].max()}"
            raise InputError.expected("sensor_size", "x up to 255 and y up to 239 for the 40-bit format", corner)
        times = events["t"].astype(np.int64)
        needed = np.maximum.accumulate(np.maximum(self._overflows, -((TIME_PERIOD - 1 - times) // OVERFLOW)))
        times = times - OVERFLOW * needed
        if times.min() < 0:
            raise InputError.expected("t", "times from 0 on, in order, for the 40-bit format", "earlier ones")
        if needed[-1] > MAX_OVERFLOWS:
            raise InputError.expected(
                "t",
                f"times that need at most {MAX_OVERFLOWS:,} overflow events of the 40-bit format",
                f"{events['t'].max()} µs, which need {needed[-1]:,}",
                hint="subtract the first time",
            )
        words = np.empty((len(events), 5), np.uint8)
        words[:, 0] = events["x"]
        words[:, 1] = events["y"]
        words[:, 2] = (events["p"] << 7) | (times >> 16)
        words[:, 3] = times >> 8 & 0xFF
        words[:, 4] = times & 0xFF
        added = np.diff(needed, prepend=self._overflows)
        if added.any():
            marker = np.array([0, OVERFLOW_ROW, 0, 0, 0], np.uint8)
            words = np.insert(words, np.repeat(np.arange(len(events)), added), marker, axis=0)
        self._overflows = int(needed[-1])
        return words.tobytes()

    def new_header(self) -> bytes | None:
        return None
