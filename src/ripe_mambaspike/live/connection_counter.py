"""How many connections one address may have: a caller with many must not take the places of all others."""

import ipaddress
import json
import logging
import time
from collections import Counter
from collections.abc import Hashable
from typing import Any

from ripe_mambaspike.live.guard import Receive, Scope, Send
from ripe_mambaspike.live.limits import TokenBucket

LOG = logging.getLogger("ripe_mambaspike")
MAX_ANSWERED = 8  # refused connections of one address that are told why at the same time; further ones are closed
TOO_BUSY = 1013  # the websocket's code for "try again later"
RETRY_SECONDS = 10


def address_key(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 network of an IPv6 one, all of which is one caller's."""
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
    """The open connections by address, each known by its transport."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refused = 0  # since the start
        self._open: dict[Hashable, tuple[str, bool]] = {}  # address, and whether it was let in
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._told = TokenBucket(1 / 60, 1)

    def has_room(self, key: str) -> bool:
        return self._counts[key, True] < self.limit

    def enter(self, transport: Hashable, key: str) -> bool:
        """Note a connection that is served."""
        return self._note(transport, key, True)

    def turn_away(self, transport: Hashable, key: str) -> bool:
        """Note one that is refused; whether there is room to tell it why."""
        self.refused += 1
        if self._told.take(time.monotonic()):
            LOG.warning("%s has %d connections, as many as may; %d refused so far", key, self.limit, self.refused)
        return self._counts[key, False] < MAX_ANSWERED and self._note(transport, key, False)

    def leave(self, transport: Hashable) -> None:
        """A connection has ended; once is enough, and no harm is done by more."""
        found = self._open.pop(transport, None)
        if found is not None:
            self._counts[found] -= 1
            if not self._counts[found]:
                del self._counts[found]

    def _note(self, transport: Hashable, key: str, served: bool) -> bool:
        self._open[transport] = (key, served)
        self._counts[key, served] += 1
        return True


def refusing(limit: int) -> Any:
    """The application that a connection beyond the limit meets: one sentence, HTTP 429 or the websocket's close."""
    sentence = f"{limit} connections from your address are open, which is as many as may be; close one or try later"

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": json.dumps({"kind": "error", "sentence": sentence})})
            await send({"type": "websocket.close", "code": TOO_BUSY, "reason": "too many connections"})
            return
        body = json.dumps({"error": sentence}).encode()
        headers = {"content-type": "application/json", "content-length": len(body), "retry-after": RETRY_SECONDS}
        headers |= {"connection": "close", "x-content-type-options": "nosniff"}
        head = [(name.encode(), str(value).encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 429, "headers": head})
        await send({"type": "http.response.body", "body": body})

    return refuse
