"""Limits of the server: sizes, rates, and connections per address."""

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.live.access import Receive, Scope, Send
from ripe_mambaspike.live.messages import error_message

LOG = logging.getLogger("ripe_mambaspike")
MEGABYTE = 1 << 20
MAX_EXPLAINED_REFUSALS = 8  # simultaneous, per address; further connections are closed without a reason
TRY_AGAIN_LATER_CODE = 1013  # the websocket's code for "try again later"
RETRY_SECONDS = 10


@dataclass(frozen=True)
class ServerLimits:
    """Limits of the server. All are ints of at least 1."""

    viewers: int = 32  # at once
    frames: int = 20  # event frames a second for each viewer
    upload_bytes: int = 256 * MEGABYTE
    upload_seconds: int = 120  # for one upload to arrive
    uploads: int = 2  # arriving or being read at once
    uploads_a_minute: int = 12
    predictions: int = 2  # requests to /predict that arrive, are read or are computed at once
    form_parts: int = 16  # of one request to /predict
    events: int = 20_000_000  # of one recording
    seconds: int = 1800  # of one recording
    held: int = 16  # recordings in memory
    held_events: int = 60_000_000  # in all of them
    listed: int = 2000  # recordings offered
    reading_seconds: int = 60  # for one recording to be read
    message_bytes: int = 4096  # of one message of a viewer
    messages_a_second: int = 20
    stalled_seconds: int = 20  # that a viewer may read nothing before it is disconnected
    head_seconds: int = 10  # that a connection may take for a whole request head
    per_address: int = 16  # connections of one address at once, viewers and others
    waiting: int = 64  # idle connections at once; beyond that the oldest is closed
    clip_events: int = 5_000_000  # of one recording of the live source
    clip_seconds: int = 60
    recorded_classes: int = 100  # in the folder that recordings are saved to
    recorded_files: int = 2000
    recorded_bytes: int = 4096 * MEGABYTE
    training_seconds: int = 3600  # of one training run
    drained_bytes: int = 4 * MEGABYTE  # of a refused upload that are still read, so that its sender sees the refusal

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{field.name}: expected an int of at least 1, got {value!r}", field=field.name)


class TokenBucket:
    """`rate` tokens per second with bursts of `burst`; the caller passes the time."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._tokens, self._since = float(burst), float("-inf")

    def take(self, now: float) -> bool:
        """Whether one more is allowed at this time, in seconds."""
        waited = 0.0 if self._since == float("-inf") else max(0.0, now - self._since)
        self._tokens = min(float(self.burst), self._tokens + self.rate * waited)
        self._since = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def address_key(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 network of an IPv6 one, which belongs to one client."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address if address.is_loopback else ipaddress.ip_network((address, 64), strict=False))


class ConnectionCounter:
    """Open connections by address, so that one client cannot use up all connections."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refused = 0  # since the start
        self._open: dict[Hashable, tuple[str, bool]] = {}  # by transport: address, and whether it is served
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._warnings = TokenBucket(1 / 60, 1)

    def has_room(self, key: str) -> bool:
        return self._counts[key, True] < self.limit

    def accept(self, transport: Hashable, key: str) -> bool:
        """Count a connection that is served."""
        return self._add(transport, key, True)

    def refuse(self, transport: Hashable, key: str) -> bool:
        """Count a refused connection; returns whether it gets the reason."""
        self.refused += 1
        if self._warnings.take(time.monotonic()):
            LOG.warning("%s has %d connections, the maximum; %d refused so far", key, self.limit, self.refused)
        return self._counts[key, False] < MAX_EXPLAINED_REFUSALS and self._add(transport, key, False)

    def remove(self, transport: Hashable) -> None:
        """Remove a closed connection; idempotent."""
        found = self._open.pop(transport, None)
        if found is not None:
            self._counts[found] -= 1
            if not self._counts[found]:
                del self._counts[found]

    def _add(self, transport: Hashable, key: str, served: bool) -> bool:
        self._open[transport] = (key, served)
        self._counts[key, served] += 1
        return True


def make_refusing_app(limit: int) -> Any:
    """The application for connections beyond the limit: a reason, by HTTP 429 or by closing the websocket."""
    reason = f"connections: expected at most {limit} from your address, got one more; close one or try later"

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": error_message(reason)})
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER_CODE, "reason": "too many connections"})
            return
        body = msgspec.json.encode({"error": reason})
        headers = {"content-type": "application/json", "content-length": len(body), "retry-after": RETRY_SECONDS}
        headers |= {"connection": "close", "x-content-type-options": "nosniff"}
        head = [(name.encode(), str(value).encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 429, "headers": head})
        await send({"type": "http.response.body", "body": body})

    return refuse
