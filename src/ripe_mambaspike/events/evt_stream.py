"""Prophesee EVT 2.0, 2.1 and 3.0 while the bytes arrive, as a camera or `cat recording.raw` sends them.

The bytes may start with the header of a RAW file; without one the encoding has to be given. Bytes may be split
anywhere: the events are those of the whole.
"""

import io
from typing import Any

import numpy as np

from ripe_mambaspike.errors import InputError, ReadError
from ripe_mambaspike.events.formats import evt2, evt3
from ripe_mambaspike.events.formats.prophesee import MAX_HEADER_BYTES, PropheseeHeader, parse_prophesee_header
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.region import inside
from ripe_mambaspike.events.source import BLOCK_WORDS, EventSource

WORDS: dict[str, np.dtype[Any]] = {"evt2": evt2.WORD, "evt21": evt2.DOUBLE_WORD, "evt3": evt3.WORD}
ORDER_BYTES = 1 << 16  # of EVT 2.1 in which a time word shows the order of its halves
OUTSIDE = "were outside the sensor"


class EvtStreamDecoder:
    """Decodes chunks of bytes. `size` is the sensor's, None until it is known; `left_out` counts events by reason.

    encoding: evt2, evt21 or evt3 for bytes without a header; None where a header comes first
    sensor_size: overrides the size that the header names
    default_size: used if neither is there
    """

    def __init__(
        self,
        encoding: str | None = None,
        sensor_size: tuple[int, int] | None = None,
        default_size: tuple[int, int] | None = None,
    ) -> None:
        self.size = sensor_size
        self._default_size, self._encoding, self._base = default_size, encoding, 0
        self._held = bytearray()
        self._state: Any = None
        self._upper_first: bool | None = None
        self._counts = EventSource(encoding or "evt", lambda source: iter(()))
        if encoding is not None:
            if encoding not in WORDS:
                raise InputError.expected("encoding", f"one of {', '.join(WORDS)}", repr(encoding))
            self._start(PropheseeHeader({}, 0), encoding)

    @property
    def left_out(self) -> dict[str, int]:
        return self._counts.left_out

    def feed(self, data: bytes) -> list[Events]:
        """The events that these bytes complete, in blocks. Raises ReadError for a header of another format."""
        self._held += data
        if self._encoding is None and not self._read_header(ended=False):
            return []
        return self._decode(ended=False)

    def end(self) -> list[Events]:
        """The rest, at the end of the bytes. Raises ReadError if they end inside a word or the header."""
        if self._encoding is None:
            if not self._held:
                return []
            self._read_header(ended=True)
        found = self._decode(ended=True)
        if self._held:
            raise ReadError.expected("size", "whole words", f"a stream that ended {len(self._held)} bytes into one")
        return found

    def _read_header(self, ended: bool) -> bool:
        """Whether the header is complete."""
        held = self._held
        if not ended and len(held) <= MAX_HEADER_BYTES and not _header_ends(held):
            return False
        header = parse_prophesee_header(io.BytesIO(held))
        encoding = header.encoding
        if encoding not in WORDS:
            raise ReadError.expected("format", f"one of {', '.join(WORDS)}", repr(encoding or "none"))
        del held[: header.start]
        self._start(header, encoding)
        return True

    def _start(self, header: PropheseeHeader, encoding: str) -> None:
        self.size = self.size or header.sensor_size or self._default_size
        if self.size is None:
            wanted = "a width and a height, as the stream names none"
            raise InputError.expected("sensor_size", wanted, "none")
        self._encoding = encoding
        self._base = header.time_base if encoding == "evt3" else 0
        self._state = evt3.Evt3State() if encoding == "evt3" else evt2.Evt2State()

    def _decode(self, ended: bool) -> list[Events]:
        assert self._encoding is not None
        dtype = WORDS[self._encoding]
        whole = len(self._held) // dtype.itemsize * dtype.itemsize
        if not whole:
            return []
        words = np.frombuffer(bytes(self._held[:whole]), dtype)
        if self._encoding == "evt21" and self._upper_first is None:
            surplus = evt2.surplus_upper_first(words)
            if not surplus and whole < ORDER_BYTES and not ended:
                return []
            self._upper_first = surplus > 0
        del self._held[:whole]
        return [self._block(words[at : at + BLOCK_WORDS]) for at in range(0, len(words), BLOCK_WORDS)]

    def _block(self, words: Any) -> Events:
        assert self.size is not None
        if self._encoding == "evt3":
            events, self._state = evt3.decode_evt3(words, self._state, self._counts)
            events["t"] += self._base
        elif self._encoding == "evt2":
            events, self._state = evt2.decode_evt2(words, self._state, self._counts)
        else:
            events, self._state = evt2.decode_evt21(words, self._state, self._counts, bool(self._upper_first))
        kept = inside(events, (0, 0, *self.size))
        if not kept.all():
            self._counts.leave_out(len(events) - np.count_nonzero(kept), OUTSIDE)
            events = events[kept]
        return events


def _header_ends(held: bytearray) -> bool:
    """Whether the bytes go beyond the header's last line."""
    at = 0
    while at < len(held):
        stop = held.find(b"\n", at)
        if held[at] != ord("%") or (stop >= 0 and held[at + 1 : stop].strip().partition(b" ")[0] == b"end"):
            return True
        if stop < 0:
            return not held[at:].isascii()  # words that start with % by chance
        at = stop + 1
    return False
