"""Standard input as a source."""

import select
import sys
from collections.abc import Iterator
from typing import BinaryIO

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.inference.stream.byte_stream import ByteStreamReader
from ripe_mambaspike.inference.stream.source_registry import POLL_SECONDS, Pace, PacketSource, SourceOptions, Stopped


class PipeSource(PacketSource):
    """Packets, or an EVT stream, from standard input or any file with a descriptor.

    At the pace "fast" the writer is made to wait. `encoding` (evt2, evt21, evt3) is for words without a header,
    `default_size` for an EVT stream that names no size.
    """

    can_wait = True

    def __init__(
        self,
        file: BinaryIO,
        pace: Pace = "real",
        sensor_size: tuple[int, int] | None = None,
        *,
        encoding: str | None = None,
        default_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(pace == "real", sensor_size)
        self._file = file
        self._reader = ByteStreamReader(encoding, sensor_size, default_size, self.losses)

    def packets(self, stopped: Stopped) -> Iterator[Events]:
        reader = self._reader
        while not stopped():
            ready, _, _ = select.select([self._file], [], [], POLL_SECONDS)
            if not ready:
                continue
            data = self._file.read1(1 << 16)  # type: ignore[attr-defined]
            for found in reader.feed(data) if data else reader.end():
                if (events := self.take(found)) is not None:
                    yield events
            if not data:
                return


def open_standard_input(options: SourceOptions, encoding: str | None = None) -> PipeSource:
    """Standard input; raises InputError if it is closed."""
    if sys.stdin is None:
        raise InputError.expected("source", "packets on standard input", "one that is closed")
    default_size = None if options.region is None else options.region.size
    return PipeSource(sys.stdin.buffer, options.pace, options.sensor_size, encoding=encoding, default_size=default_size)
