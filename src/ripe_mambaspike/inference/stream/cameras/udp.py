"""A UDP port as a source."""

import socket
import sys
from collections.abc import Iterator

from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.inference.stream.addresses import SocketAddress, parse_address
from ripe_mambaspike.inference.stream.packets import EventPacket, read_packet
from ripe_mambaspike.inference.stream.sequences import SequenceCounter
from ripe_mambaspike.inference.stream.source_registry import (
    POLL_SECONDS,
    PacketSource,
    SourceOptions,
    Stopped,
    register_source,
)

MAX_DATAGRAM_BYTES = 65536
RECEIVE_BUFFER_BYTES = 8 << 20  # of the operating system
SO_RXQ_OVFL = 40  # Linux: say with each datagram how many were dropped before it, as the buffer was full


class UdpSource(PacketSource):
    """Datagrams of one packet each. The port is open from the start: what comes early waits in it.

    Numbered datagrams that are missing, late or doubled are counted, for each sender; doubled ones are left out.
    """

    def __init__(self, host: str, port: int, sensor_size: tuple[int, int] | None = None) -> None:
        super().__init__(True, sensor_size)
        try:
            kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(kind, socket.SOCK_DGRAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            self._socket.settimeout(POLL_SECONDS)
            if sys.platform == "linux":
                self._socket.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
            self._socket.bind(place)
        except OSError as error:
            raise SocketAddress("udp", host, port).unopened(error) from error
        self._sequences = SequenceCounter()
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def close(self) -> None:
        self._socket.close()

    def packets(self, stopped: Stopped) -> Iterator[Events]:
        with self._socket:
            while not stopped():
                try:
                    data, notes, _, sender = self._socket.recvmsg(MAX_DATAGRAM_BYTES, socket.CMSG_SPACE(4))
                except TimeoutError:
                    continue
                for level, kind, value in notes:
                    if (level, kind) == (socket.SOL_SOCKET, SO_RXQ_OVFL):
                        self.lost = int.from_bytes(value[:4], sys.byteorder)
                found = read_packet(data)
                if isinstance(found, EventPacket) and found.sequence is not None:
                    doubled = self._sequences.count(sender, found.sequence)
                    self.losses = self._sequences.losses()
                    if doubled:
                        continue
                if (events := self.take(found)) is not None:
                    yield events


@register_source("udp", form="udp://HOST:PORT", start="listening on", always_live=True)
def open_udp(given: str, options: SourceOptions) -> UdpSource:
    """Listen at udp://HOST:PORT."""
    _, host, port = parse_address(given, "source")
    return UdpSource(host, port, options.sensor_size)
