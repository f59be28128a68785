"""The network stream of `dv-processing` and DV (`dv_processing.io.NetworkWriter`), read over TCP.

Its protocol is that of an AEDAT4 file without the magic line: a header prefixed by its length, then packets of one
stream: stream i32, length i32, content. We read it ourselves, since the package's own `NetworkReader` drops packets
silently when 1,000 wait, and hangs the whole process on a server that sends no header. Here a slow reader makes the
writer wait.
"""

import select
import socket
import time
from collections.abc import Iterator

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.inference.stream.addresses import parse_address
from ripe_mambaspike.inference.stream.dv_protocol import DvStreamReader
from ripe_mambaspike.inference.stream.source_registry import (
    POLL_SECONDS,
    PacketSource,
    SourceOptions,
    Stopped,
    register_source,
)

CONNECT_SECONDS = 2.0
HEADER_SECONDS = 5.0  # in which a writer must say what it sends
RETRY_SECONDS = 0.2
OUTSIDE = "events that were outside the sensor"


class DvSource(PacketSource):
    """Events of one writer. A writer that is not there yet is waited for; the source ends when the writer goes away.

    With `keep_listening` it then waits for the next one.
    """

    can_wait = True

    def __init__(
        self,
        host: str,
        port: int,
        live: bool = True,
        sensor_size: tuple[int, int] | None = None,
        *,
        keep_listening: bool = False,
    ) -> None:
        super().__init__(live, sensor_size)
        self._keep_listening = keep_listening
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            got = f"{host} ({error.strerror or error})"
            raise InputError.expected("source", "the host of a dv-processing writer", got) from error
        self._family, self._place = found[0][0], found[0][4]

    def packets(self, stopped: Stopped) -> Iterator[Events]:
        while (connection := self._connect(stopped)) is not None:
            with connection:
                yield from self._receive(connection, stopped)
            if not self._keep_listening:
                return

    def _connect(self, stopped: Stopped) -> socket.socket | None:
        """A connection to the writer, as soon as it is there; None when stopped."""
        while not stopped():
            made = socket.socket(self._family, socket.SOCK_STREAM)
            made.settimeout(CONNECT_SECONDS)
            try:
                made.connect(self._place)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except OSError:
                made.close()
                time.sleep(RETRY_SECONDS)
            else:
                return made
        return None

    def _receive(self, connection: socket.socket, stopped: Stopped) -> Iterator[Events]:
        reader, began = DvStreamReader(), time.monotonic()
        while not stopped():
            if reader.size is None and time.monotonic() - began > HEADER_SECONDS:
                raise self._no_writer("a server that sends no header")
            if not select.select([connection], [], [], POLL_SECONDS)[0]:
                continue
            try:
                data = connection.recv(1 << 18)
            except OSError as error:
                self._note_invalid(f"the connection broke off ({error.strerror or error})")
                return
            if not data:
                if reader.size is None:
                    raise self._no_writer("a server that closed the connection before its header")
                if reader.held:
                    self._note_invalid(f"the writer went away {reader.held} bytes into a packet")
                return
            yield from self._read(reader, data)

    def _read(self, reader: DvStreamReader, data: bytes) -> Iterator[Events]:
        known = reader.size is not None
        for events in reader.feed(data):
            if not known and reader.size is not None:
                self.set_size(reader.size)
                known = True
            if events is not None:
                yield events
        if reader.outside:
            self.losses[OUTSIDE] += reader.outside
            reader.outside = 0

    def _no_writer(self, got: str) -> InputError:
        return InputError.expected("source", "a writer of dv-processing", got)

    def _note_invalid(self, reason: str) -> None:
        self.invalid += 1
        self.last_invalid = reason


@register_source("dv", form="dv://HOST:PORT", start="waiting for the writer at")
def open_dv(given: str, options: SourceOptions) -> DvSource:
    """Connect to dv://HOST:PORT, where a `NetworkWriter` of dv-processing, or DV, serves events."""
    place = given.partition("://")[2]
    try:
        _, host, port = parse_address(f"tcp://{place}", "source")
    except InputError:
        raise InputError.expected("source", "dv://HOST:PORT with a port up to 65535", repr(given)) from None
    live = options.pace == "real"
    return DvSource(host, port, live, options.sensor_size, keep_listening=options.keep_listening)
