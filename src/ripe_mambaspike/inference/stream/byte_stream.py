"""Bytes of a pipe or a connection → packets of events: our own packets, or the EVT stream of a Prophesee camera."""

from collections import Counter
from collections.abc import Iterator

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.evt_stream import EvtStreamDecoder
from ripe_mambaspike.events.source import empty_events
from ripe_mambaspike.inference.stream.packets import EventPacket, InvalidPacket, PacketReader


class ByteStreamReader:
    """Finds out by the first byte what comes: `%` begins the header of a RAW file, all else is for `PacketReader`.

    encoding: evt2, evt21 or evt3 for words without a header
    sensor_size: of an EVT stream, whatever its header says; `default_size` where neither is there
    losses: counts the events that an EVT stream has to leave out
    """

    def __init__(
        self,
        encoding: str | None = None,
        sensor_size: tuple[int, int] | None = None,
        default_size: tuple[int, int] | None = None,
        losses: Counter[str] | None = None,
    ) -> None:
        self._sizes = sensor_size, default_size
        self._packets: PacketReader | None = None
        self._evt = None if encoding is None else EvtStreamDecoder(encoding, sensor_size, default_size)
        self._losses = Counter() if losses is None else losses
        self._counted: Counter[str] = Counter()

    def feed(self, data: bytes) -> Iterator[EventPacket | InvalidPacket]:
        """The packets that these bytes complete."""
        if self._packets is None and self._evt is None and data:
            if data.startswith(b"%"):
                self._evt = EvtStreamDecoder(None, *self._sizes)
            else:
                self._packets = PacketReader()
        if self._packets is not None:
            yield from self._packets.feed(data)
        elif self._evt is not None:
            yield from self._decode(self._evt, data)

    def end(self) -> Iterator[EventPacket | InvalidPacket]:
        """What is left at the end of the stream."""
        if self._packets is not None:
            yield from self._packets.end()
        elif self._evt is not None:
            yield from self._decode(self._evt, None)

    def _decode(self, evt: EvtStreamDecoder, data: bytes | None) -> Iterator[EventPacket | InvalidPacket]:
        try:
            found = evt.end() if data is None else evt.feed(data)
        except ReadError as error:
            yield InvalidPacket(str(error))
            self._evt, self._packets = None, PacketReader()  # which looks for a packet in what follows
            return
        counts = Counter({f"events that {why}": count for why, count in evt.left_out.items()})
        self._losses.update(counts - self._counted)
        self._counted = counts
        for events in found:
            assert evt.size is not None
            yield EventPacket(evt.size, events if len(events) else empty_events())
