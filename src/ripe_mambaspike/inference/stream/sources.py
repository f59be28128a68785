"""Sources of a stream: a recording, a pipe, a UDP or a TCP port. Each yields packets of events until it is stopped."""

import os
import re
import select
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.reading import open_recording
from ripe_mambaspike.events.recording import Events, RecordingWarning
from ripe_mambaspike.events.region import GUESSED, SensorRegion, guessed_size_warning
from ripe_mambaspike.inference.stream.addresses import is_address, parse_address
from ripe_mambaspike.inference.stream.packets import EventPacket, InvalidPacket, PacketReader, read_packet

Pace = Literal["real", "fast"]
Stopped = Callable[[], bool]

PACKET_US = 10_000  # of a recording replayed at its own pace
PACKET_EVENTS = 1 << 16
POLL_SECONDS = 0.1  # between two checks whether to stop
MAX_DATAGRAM_BYTES = 65536
RECEIVE_BUFFER_BYTES = 8 << 20  # of the operating system
SO_RXQ_OVFL = 40  # Linux: say with each datagram how many were dropped before it, as the buffer was full


class StreamSource(Protocol):
    """Yields packets of events. `live`: packets come by the wall clock and cannot be made to wait.

    `size`, the sensor's (width, height), is known from the first events on. A source whose packets name it also has
    `check_sizes(check_sensor)`.
    """

    live: bool
    invalid: int  # packets
    last_invalid: str | None  # why the last one was
    size: tuple[int, int] | None

    def packets(self, stopped: Stopped) -> Iterator[Events]: ...


def open_stream(
    given: str,
    *,
    pace: Pace = "real",
    sensor_size: tuple[int, int] | None = None,
    region: SensorRegion | None = None,
    keep_listening: bool = False,
) -> StreamSource:
    """Open a file, `-` for standard input, or a port to listen on: udp://HOST:PORT or tcp://HOST:PORT.

    `sensor_size` overrides the size that the source names; `region` is used for a file that names none. A TCP source
    ends with its connection unless it is to `keep_listening`.
    """
    if given == "-":
        if sys.stdin is None:
            raise InputError.expected("source", "packets on standard input", "one that is closed")
        return PipeSource(sys.stdin.buffer, pace, sensor_size)
    if is_address(given):
        scheme, host, port = parse_address(given, "source")
        if scheme == "udp":
            return UdpSource(host, port, sensor_size)
        return TcpSource(host, port, pace, sensor_size, keep_listening=keep_listening)
    if re.match(r"[a-z]+://", given):
        raise InputError.expected("source", "a file, -, udp://HOST:PORT or tcp://HOST:PORT", repr(given))
    return FileSource(Path(given), pace, sensor_size, region)


class FileSource:
    """A recording of any format, in packets; at its own pace or as fast as they are taken."""

    def __init__(
        self,
        path: Path,
        pace: Pace,
        sensor_size: tuple[int, int] | None = None,
        region: SensorRegion | None = None,
    ) -> None:
        self.path, self.pace, self.live = path, pace, pace == "real"
        self.invalid = 0
        self.last_invalid: str | None = None
        opened = open_recording(path, sensor_size=sensor_size)
        if opened.declared_size is None:  # the size has to be guessed from the events, so the file is read once
            for _ in opened.pieces():
                pass
        try:
            found = (region or SensorRegion()).decide_size(opened.sensor_size, opened.size_from, opened.corner)
        except InputError as error:
            raise InputError(f"{path}: {error}", field=error.field, path=path) from error
        self.size: tuple[int, int] | None = found[0]
        self.size_from = found[1]
        if self.size_from == GUESSED and region is not None:
            warnings.warn(f"{path}: {guessed_size_warning(found[0])}", RecordingWarning, stacklevel=3)
        self.warnings: tuple[str, ...] = ()

    def packets(self, stopped: Stopped) -> Iterator[Events]:
        opened = open_recording(self.path, sensor_size=self.size)
        began, first = time.monotonic(), None
        for piece in opened.pieces():
            for packet in split_events(piece, PACKET_US if self.live else None):
                if first is None:
                    first = int(packet["t"][0])
                due = began + (int(packet["t"].max()) - first) / 1e6
                while self.live and not stopped() and (left := due - time.monotonic()) > 0:
                    time.sleep(min(left, POLL_SECONDS))
                if stopped():
                    return
                yield packet
        self.warnings = opened.warnings


def split_events(events: Events, span_us: int | None, max_events: int = PACKET_EVENTS) -> Iterator[Events]:
    """Packets of at most `max_events` and, if given, of about `span_us`; the order of the file is kept."""
    if span_us is None:
        bounds = list(range(0, len(events), max_events))
    else:
        reached = np.maximum.accumulate(events["t"])
        cells = (reached - reached[:1]) // span_us
        changes = np.flatnonzero(np.diff(cells)) + 1
        bounds = [place for first, end in _between(0, changes, len(events)) for place in range(first, end, max_events)]
    for first, end in _between(0, np.asarray(bounds[1:], np.int64), len(events)):
        yield events[first:end].copy()  # readers reuse their buffers


def _between(first: int, inner: "np.ndarray[tuple[int], np.dtype[np.int64]]", last: int) -> list[tuple[int, int]]:
    places = [first, *inner.tolist(), last]
    return [(start, end) for start, end in pairwise(places) if end > start]


class PacketSource:
    """Base of pipe, UDP and TCP sources: one sensor size, and invalid packets, which are skipped and counted."""

    def __init__(self, live: bool, sensor_size: tuple[int, int] | None) -> None:
        self.live, self.size = live, sensor_size
        self.size_from = "the source" if sensor_size is None else "the caller"
        self._check_sensor: Callable[[tuple[int, int]], None] = lambda size: None
        self.invalid = self.lost = 0  # packets: lost ones were dropped by the operating system
        self.last_invalid: str | None = None

    def take(self, found: EventPacket | InvalidPacket) -> Events | None:
        if isinstance(found, EventPacket) and self.size is not None and found.sensor_size != self.size:
            width, height = found.sensor_size
            found = InvalidPacket(f"a sensor of {width}×{height} in a stream of {self.size[0]}×{self.size[1]}")
        if isinstance(found, InvalidPacket):
            self.invalid += 1
            self.last_invalid = found.reason
            return None
        if self.size is None and len(found.events):  # a packet without events must not decide the size
            try:
                self._check_sensor(found.sensor_size)
            except InputError as error:
                return self.take(InvalidPacket(str(error)))
            self.size = found.sensor_size
        return found.events

    def check_sizes(self, check_sensor: Callable[[tuple[int, int]], None]) -> None:
        """Call this before the size is taken from a packet; if it raises InputError the packet is invalid."""
        self._check_sensor = check_sensor


class PipeSource(PacketSource):
    """Packets from standard input or any file with a descriptor; at the pace "fast" the writer is made to wait."""

    def __init__(self, file: BinaryIO, pace: Pace = "real", sensor_size: tuple[int, int] | None = None) -> None:
        super().__init__(pace == "real", sensor_size)
        self._file = file

    def packets(self, stopped: Stopped) -> Iterator[Events]:
        reader = PacketReader()
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


def _unopened(kind: str, host: str, port: int, reason: object) -> InputError:
    address = f"{kind.lower()}://{host}:{port}"
    return InputError.expected("source", f"a {kind} port that can be opened", f"{address} ({reason})")


class UdpSource(PacketSource):
    """Datagrams of one packet each. The port is open from the start: what comes early waits in it."""

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
            raise _unopened("UDP", host, port, error.strerror or error) from error
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def packets(self, stopped: Stopped) -> Iterator[Events]:
        with self._socket:
            while not stopped():
                try:
                    data, notes, _, _ = self._socket.recvmsg(MAX_DATAGRAM_BYTES, socket.CMSG_SPACE(4))
                except TimeoutError:
                    continue
                for level, kind, value in notes:
                    if (level, kind) == (socket.SOL_SOCKET, SO_RXQ_OVFL):
                        self.lost = int.from_bytes(value[:4], sys.byteorder)
                if (events := self.take(read_packet(data))) is not None:
                    yield events


class TcpSource(PacketSource):
    """Packets over a connection, one connection at a time; others are refused meanwhile, and counted as invalid.

    The source ends with its connection, unless it keeps listening. A connection without a packet does not count. The
    port is open from the start. At the pace "fast" the sender is made to wait.
    """

    def __init__(
        self,
        host: str,
        port: int,
        pace: Pace = "real",
        sensor_size: tuple[int, int] | None = None,
        *,
        keep_listening: bool = False,
    ) -> None:
        super().__init__(pace == "real", sensor_size)
        self._keep_listening = keep_listening
        try:
            kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.create_server(place[:2], family=kind, backlog=4)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error
            raise _unopened("TCP", host, port, reason) from error
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

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
        reader, data = PacketReader(), b"."
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
