"""What every request passes first: whether it is meant for this server, and by a page of its own."""

from collections.abc import Awaitable, Callable
from typing import Any

from ripe_mambaspike.live.addresses import host_allowed, origin_allowed

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class OriginGuard:
    """Refuses what is meant for another server or comes from another site's page; adds a strict page's headers."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], names: frozenset[str]) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        given = [(key.lower(), value.decode("latin-1")) for key, value in scope["headers"]]
        hosts = [value for key, value in given if key == b"host"]
        origins = [value for key, value in given if key == b"origin"]
        own = len(hosts) == 1 and host_allowed(hosts[0], self.names)
        if not own or len(origins) > 1 or not origin_allowed(next(iter(origins), None), hosts[0]):
            await _refuse(scope, receive, send)
            return

        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        await self.app(scope, receive, send_with_headers)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})  # before it is accepted: answered with 403
        return
    body = b"this server is called by another name, or by a page of another site; its own page is wanted\n"
    head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    head.append((b"connection", b"close"))  # whatever else it was about to send
    await send({"type": "http.response.start", "status": 403, "headers": head})
    await send({"type": "http.response.body", "body": body})
