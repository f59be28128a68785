"""A TCP port as a source."""

import select
import socket
from collections.abc import Iterator

from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.inference.stream.addresses import SocketAddress, parse_address
from ripe_mambaspike.inference.stream.byte_stream import ByteStreamReader
from ripe_mambaspike.inference.stream.packets import InvalidPacket
from ripe_mambaspike.inference.stream.source_registry import (
    POLL_SECONDS,
    Pace,
    PacketSource,
    SourceOptions,
    Stopped,
    register_source,
)


class TcpSource(PacketSource):
    """Packets, or an EVT stream, over a connection, one at a time; others are refused meanwhile, counted as invalid.

    The source ends with its connection, unless it keeps listening. A connection without a packet does not count. The
    port is open from the start. At the pace "fast" the sender is made to wait. `encoding` (evt2, evt21, evt3) is for
    words without a header, `default_size` for an EVT stream that names no size.
    """

    can_wait = True

    def __init__(
        self,
        host: str,
        port: int,
        pace: Pace = "real",
        sensor_size: tuple[int, int] | None = None,
        *,
        keep_listening: bool = False,
        encoding: str | None = None,
        default_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(pace == "real", sensor_size)
        self._keep_listening = keep_listening
        self._sizes, self._encoding = (sensor_size, default_size), encoding
        ByteStreamReader(encoding, sensor_size, default_size)  # which refuses words of an unknown sensor
        try:
            kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.create_server(place[:2], family=kind, backlog=4)
        except OSError as error:
            raise SocketAddress("tcp", host, port).unopened(error) from error
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def close(self) -> None:
        self._socket.close()

    def packets(self, stopped: Stopped) -> Iterator[Events]:
        with self._socket:
            while not stopped():
                if self._socket not in select.select([self._socket], [], [], POLL_SECONDS)[0]:
                    continue
                connection, _ = self._socket.accept()
                found = False
                with connection:
                    for events in self._receive(connection, stopped):
                        found = True
                        yield events
                if found and not self._keep_listening:
                    return

    def _receive(self, connection: socket.socket, stopped: Stopped) -> Iterator[Events]:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # to notice a sender that has vanished
        reader, data = ByteStreamReader(self._encoding, *self._sizes, self.losses), b"."
        while data and not stopped():
            ready, _, _ = select.select([connection, self._socket], [], [], POLL_SECONDS)
            if connection not in ready:
                if self._socket in ready:
                    self._refuse()
                continue
            try:
                data = connection.recv(1 << 16)
            except OSError as error:
                data = b""
                self.take(InvalidPacket(f"the connection broke off ({error.strerror or error})"))
            for found in reader.feed(data) if data else reader.end():
                if (events := self.take(found)) is not None:
                    yield events

    def _refuse(self) -> None:
        other, address = self._socket.accept()
        self.take(InvalidPacket(f"another connection, from {address[0]}, while one was open"))
        other.close()


def open_tcp(given: str, options: SourceOptions, encoding: str | None = None) -> TcpSource:
    """Listen at tcp://HOST:PORT."""
    _, host, port = parse_address(given, "source")
    default_size = None if options.region is None else options.region.size
    return TcpSource(
        host, port, options.pace, options.sensor_size,
        keep_listening=options.keep_listening, encoding=encoding, default_size=default_size,
    )  # fmt: skip


@register_source("tcp", form="tcp://HOST:PORT", start="listening on")
def _open(given: str, options: SourceOptions) -> TcpSource:
    return open_tcp(given, options)
