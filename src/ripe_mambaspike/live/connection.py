"""A connection to the service: let go when it asks for nothing, and closed so that a refusal can still be read.

Only the server loads this module; it needs uvicorn.
"""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from ripe_mambaspike.live.limits import Limits


class Closer:
    """What a response is written to: a transport whose end the connection decides on."""

    def __init__(self, connection: "Connection") -> None:
        transport = connection.transport
        self.write, self.is_closing, self.close = transport.write, transport.is_closing, connection.finish


class Connection(H11Protocol):
    """One connection. Between requests it waits; who waits too long, or is the oldest of too many, is let go."""

    limits = Limits()
    waiting: ClassVar[dict["Connection", asyncio.TimerHandle]] = {}  # the oldest first; each server has its own
    upgraded = False
    stalled: asyncio.TimerHandle | None = None  # while what was written is not taken
    left: int | None = None  # bytes that are still read and thrown away after a refusal, once there was one

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._note()
        if len(self.waiting) > self.limits.waiting:
            oldest = next(iter(self.waiting))
            oldest._forget()
            self.connections.discard(oldest)  # at once: many may come before it is gone
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._unstall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled = self.loop.call_later(self.limits.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._unstall()
        super().resume_writing()

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
            self.cycle.transport = Closer(self)  # type: ignore[assignment]
        self._note()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self.upgraded = True  # it is another protocol's from here on
        self._unstall()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        if self.left is None:
            super().on_response_complete()
        self._note()

    def finish(self) -> None:
        """The response says that the connection closes. A body that is still coming is read on for a little while:
        closing over bytes that nobody read resets the connection, and the response may be lost with it."""
        if self.cycle is None or not self.cycle.more_body or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.left = self.limits.drained_bytes
        self.transport.write_eof()
        self.flow.resume_reading()

    def _note(self) -> None:
        """Whether it waits, or a request is being answered."""
        answered = self.cycle is None or self.cycle.response_complete
        if self.upgraded or not answered or self.transport.is_closing():
            self._forget()
        elif self not in self.waiting:
            self.waiting[self] = self.loop.call_later(self.limits.head_seconds, self.transport.abort)

    def _forget(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _unstall(self) -> None:
        if self.stalled is not None:
            self.stalled.cancel()
            self.stalled = None


def bounded(limits: Limits) -> type[Connection]:
    """The connections of one server."""
    return type("Connection", (Connection,), {"limits": limits, "waiting": {}})
