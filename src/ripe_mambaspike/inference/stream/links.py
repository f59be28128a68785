"""The sending end of UDP and TCP: a link counts the events that were not delivered, as far as it can know."""

import errno
import ipaddress
import os
import socket
import time
from collections import Counter
from typing import Protocol, Self

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.inference.stream.addresses import SocketAddress
from ripe_mambaspike.inference.stream.file_source import PACKET_EVENTS
from ripe_mambaspike.inference.stream.packets import DATAGRAM_EVENTS, HEADER, RECORD
from ripe_mambaspike.inference.stream.source_registry import POLL_SECONDS, Stopped

FRAME_EVENTS = (1472 - HEADER.size) // RECORD.itemsize  # that fit into an Ethernet frame: a part lost is a packet lost
CONNECT_SECONDS = 10.0
FINISH_SECONDS = 10.0  # that a receiver may take to read what is on its way
STOP_SECONDS = 1.0  # for the rest of a packet when the sender is stopped


class PacketLink(Protocol):
    """Sends packets of at most `max_events`; a link that may lose some wants them `numbered`."""

    max_events: int
    numbered: bool
    lost: Counter[str]  # events, by reason
    lost_packets: int

    def send(self, packet: bytes, events: int, stopped: Stopped) -> None: ...
    def finish(self, stopped: Stopped) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def open_link(address: SocketAddress) -> PacketLink:
    """A link to the receiver at this address."""
    return UdpLink(address) if address.scheme == "udp" else TcpLink(address)


class SocketLink:
    """Base of both: a connected socket and the counts."""

    numbered = False

    def __init__(self, address: SocketAddress, max_events: int, connected: socket.socket) -> None:
        self.address, self.max_events, self._socket = address, max_events, connected
        self.lost: Counter[str] = Counter()
        self.lost_packets = 0

    def note_lost(self, events: int, reason: str) -> None:
        self.lost[reason] += events
        self.lost_packets += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class UdpLink(SocketLink):
    """Datagrams. A receiver that is not there shows by the error of the next datagram, where it shows at all."""

    numbered = True

    def __init__(self, address: SocketAddress) -> None:
        try:
            kind, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
            made = socket.socket(kind, socket.SOCK_DGRAM)
            made.connect(place)
        except OSError as error:
            raise _no_receiver(address, error) from error
        local = ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback
        super().__init__(address, DATAGRAM_EVENTS if local else FRAME_EVENTS, made)
        self._previous = 0  # events of the last datagram that may still turn out to be refused

    def send(self, packet: bytes, events: int, stopped: Stopped) -> None:
        for _ in range(2):
            try:
                self._socket.send(packet)
            except ConnectionRefusedError as error:  # of the datagram before: this one has not been sent
                self._note_refused(_reason(error))
            except OSError as error:
                self.note_lost(events, _reason(error))
                return
            else:
                self._previous = events
                return
        self.note_lost(events, os.strerror(errno.ECONNREFUSED))

    def finish(self, stopped: Stopped) -> bool:
        time.sleep(POLL_SECONDS)  # for the last refusal to come
        return True

    def __exit__(self, *_: object) -> None:
        if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._note_refused(os.strerror(code))
        super().__exit__()

    def _note_refused(self, reason: str) -> None:
        """Count the last datagram, whose receiver was not there."""
        if self._previous:
            self.note_lost(self._previous, reason)
        self._previous = 0


class TcpLink(SocketLink):
    """A connection: nothing is lost while it lasts, and a slow receiver makes the sender wait."""

    def __init__(self, address: SocketAddress) -> None:
        try:
            made = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise _no_receiver(address, error) from error
        made.settimeout(POLL_SECONDS)
        super().__init__(address, PACKET_EVENTS, made)

    def send(self, packet: bytes, events: int, stopped: Stopped) -> None:
        left, end = memoryview(packet), None
        while left:
            try:
                left = left[self._socket.send(left) :]
            except TimeoutError:
                if stopped():
                    end = end or time.monotonic() + STOP_SECONDS
                if end is not None and time.monotonic() > end:
                    self.note_lost(events, "stopped while the receiver did not read")
                    return
            except OSError as error:
                self.note_lost(events, _reason(error))
                raise self._left(error) from error

    def finish(self, stopped: Stopped) -> bool:
        """End the stream; whether the receiver has read it to the end."""
        end = time.monotonic() + FINISH_SECONDS
        try:
            self._socket.shutdown(socket.SHUT_WR)
            while not stopped() and time.monotonic() < end:
                try:
                    if not self._socket.recv(1024):
                        return True
                except TimeoutError:
                    continue
        except OSError as error:
            raise self._left(error) from error
        return False

    def _left(self, error: OSError) -> InputError:
        got = f"{self.address}, which closed the connection ({_reason(error)})"
        return InputError.expected("to", "a receiver that reads to the end", got)


def _no_receiver(address: SocketAddress, error: OSError) -> InputError:
    return InputError.expected("to", "a receiver that can be reached", f"{address} ({_reason(error)})")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
