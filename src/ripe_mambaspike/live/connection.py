"""Connections to the server: closed when idle or stalled, in a way that lets the client read a refusal.

Only the server imports this module; it needs uvicorn.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ripe_mambaspike.live.limits import (
    ConnectionCounter,
    ServerLimits,
    TokenBucket,
    address_key,
    make_refusing_app,
)

IDLE_SECONDS = 1.0  # without a request, after which a new connection of the same address may replace it
CLOSING_SECONDS = 5.0  # that a viewer may take to answer a close
MAX_UNSENT_BYTES = 1 << 20  # of replies to pings that a viewer does not read
FRAMES_PER_MESSAGE = 10  # pings and parts of messages, for each message that is allowed


class ResponseTransport:
    """The transport of a response, which leaves closing to the connection."""

    def __init__(self, connection: "HttpConnection") -> None:
        transport = connection.transport
        self.write, self.is_closing, self.close = transport.write, transport.is_closing, connection.finish


class TimedConnection(asyncio.Protocol):
    """Base of both kinds of connection: a client that does not read is disconnected."""

    limits = ServerLimits()
    counter = ConnectionCounter(limits.per_address)  # each server has its own
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    cutting: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.cancel_abort()
        self.counter.remove(self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.abort_after(self.limits.stalled_seconds)

    def resume_writing(self) -> None:
        self.cancel_abort()
        super().resume_writing()

    def abort_after(self, seconds: float) -> None:
        """Abort the connection after this time; a normal close would wait until all data has been sent."""
        if self.cutting is None:
            self.cutting = self.loop.call_later(seconds, self.transport.abort)

    def cancel_abort(self) -> None:
        if self.cutting is not None:
            self.cutting.cancel()
            self.cutting = None


class HttpConnection(TimedConnection, H11Protocol):
    """An HTTP connection. It is closed when it is idle too long, or is the oldest of too many."""

    waiting: ClassVar[dict["HttpConnection", asyncio.TimerHandle]] = {}  # the oldest first; each server has its own
    refusing_socket: ClassVar[type["RefusingSocket"]]
    refuse: ClassVar[Callable[..., Any]]
    upgraded = False
    left: int | None = None  # bytes that are still read and discarded after a refusal
    key = ""  # of its address

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.key = address_key(self.client[0] if self.client else "")
        if self._admit():
            self._update_idle()
        if len(self.waiting) > self.limits.waiting:
            next(iter(self.waiting))._close_idle()

    def _admit(self) -> bool:
        """Whether to keep the connection: served, or refused with a reason. It may replace an idle one."""
        if not self.counter.has_room(self.key):
            latest = self.loop.time() + self.limits.head_seconds - IDLE_SECONDS
            idle = (one for one, timer in self.waiting.items() if one.key == self.key and timer.when() <= latest)
            if (oldest := next(idle, None)) is not None:
                oldest._close_idle()
        if self.counter.has_room(self.key):
            return self.counter.accept(self.transport, self.key)
        if not self.counter.refuse(self.transport, self.key):
            self.transport.abort()
            return False
        self.app, self.ws_protocol_class = self.refuse, self.refusing_socket
        return True

    def _close_idle(self) -> None:
        self._stop_waiting()
        self.connections.discard(self)  # immediately, since many connections may arrive before it has closed
        self.counter.remove(self.transport)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.left is None:
            super().data_received(data)
            return
        self.left -= len(data)
        if self.left < 0:
            self.transport.close()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.transport = ResponseTransport(self)  # type: ignore[assignment]
        self._update_idle()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self.upgraded = True  # handled by the websocket protocol from here on
        self.cancel_abort()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        if self.left is None:
            super().on_response_complete()
        self._update_idle()

    def finish(self) -> None:
        """Close after the response, but first read the rest of the body for a while: closing with unread data resets
        the connection, and the client may lose the response."""
        if self.cycle is None or not self.cycle.more_body or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.left = self.limits.drained_bytes
        try:
            self.transport.write_eof()
        except OSError:  # it was reset meanwhile
            self.transport.abort()
        self.flow.resume_reading()

    def _update_idle(self) -> None:
        """Note whether it is idle, or a request is being answered."""
        answered = self.cycle is None or self.cycle.response_complete
        if self.upgraded or not answered or self.transport.is_closing():
            self._stop_waiting()
        elif self not in self.waiting:
            self.waiting[self] = self.loop.call_later(self.limits.head_seconds, self.transport.abort)
        if self.transport.is_closing() and not self.upgraded:
            self.abort_after(self.limits.stalled_seconds)

    def _stop_waiting(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()


class ViewerSocket(TimedConnection, WebSocketsSansIOProtocol):
    """A viewer's websocket. It must answer pings, since system buffers can hide that a client does not read."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        rate = FRAMES_PER_MESSAGE * self.limits.messages_a_second
        self._bucket = TokenBucket(rate, 2 * rate)

    def keepalive_timeout(self) -> None:
        if self.read_paused:  # the pong may be queued behind a message that is being handled
            self.pong_timer = None
            self.schedule_ping()
            return
        self.transport.abort()

    def on_task_complete(self, task: "asyncio.Task[None]") -> None:
        super().on_task_complete(task)
        self.cancel_abort()
        if not self.disconnected:
            self.abort_after(CLOSING_SECONDS)

    def handle_ping(self) -> None:
        if self._allowed() and self.transport.get_write_buffer_size() <= MAX_UNSENT_BYTES:
            super().handle_ping()
        else:
            self.transport.abort()

    def handle_cont(self, event: Any) -> None:
        if self._allowed():
            super().handle_cont(event)
        else:
            self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        text = self.curr_msg_data_type == "text" and not self.close_sent
        if text and not _is_text(b"".join(self.frames)):
            self.frames = []
            self.conn.send_close(1007)
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

    def _allowed(self) -> bool:
        """Whether another frame that is no message of its own is allowed."""
        return self._bucket.take(self.loop.time())


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class RefusingSocket(ViewerSocket):
    """A websocket of an address that has too many connections."""

    refuse: ClassVar[Callable[..., Any]]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.app = self.refuse


def make_protocols(limits: ServerLimits, counter: ConnectionCounter) -> tuple[type[HttpConnection], type[ViewerSocket]]:
    """The connections of one server, and its websockets."""
    refuse = staticmethod(make_refusing_app(limits.per_address))
    shared: dict[str, Any] = {"limits": limits, "counter": counter, "refuse": refuse}
    own = {"waiting": {}, "refusing_socket": type("RefusingSocket", (RefusingSocket,), shared)}
    return type("HttpConnection", (HttpConnection,), shared | own), type("ViewerSocket", (ViewerSocket,), shared)
