"""Who may use the server: requests that are meant for it, from its own page.

A page of another site can send requests to a server on this machine, and with a name of its own that points here (DNS
rebinding) it could even read the responses. Browsers say where a request goes (Host) and which page sends it (Origin):
a name that is not this server's, or a page that did not come from it, is refused.
"""

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from ripe_mambaspike.errors import InputError

LOCAL_NAMES = frozenset({"localhost"})
DEFAULT_PORTS = {"http": 80, "https": 443}
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


def is_loopback(host: str) -> bool:
    """Whether a host to bind to can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def known_names(host: str, own_name: str) -> frozenset[str]:
    """The names of this server, besides numeric addresses, which nobody can point elsewhere."""
    return LOCAL_NAMES if is_loopback(host) else LOCAL_NAMES | {host.lower(), own_name.lower()} - {""}


def host_allowed(header: str, names: frozenset[str]) -> bool:
    """Whether the Host header names this server: by an address, or by one of its names."""
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def origin_allowed(origin: str | None, host: str) -> bool:
    """Whether the requesting page came from here. A client that is no browser sends no Origin."""
    if origin is None:
        return True
    try:
        asked, own = urlsplit(origin), urlsplit(f"//{host}")
        standard = DEFAULT_PORTS.get(asked.scheme)
        if standard is None or not asked.hostname:
            return False
        return asked.hostname == own.hostname and (asked.port or standard) == (own.port or standard)
    except ValueError:
        return False


def check_host(host: str) -> str:
    """The host to bind to, checked: an address or a name without port or path."""
    plain = host.strip("[]")
    if not plain or any(sign in plain for sign in "/@?# \0") or (":" in plain and not _is_ipv6(plain)):
        raise InputError.expected("host", "an address or the name of this machine", f"'{host}'")
    return plain


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


class OriginGuard:
    """Refuses requests for another server or from another site's page, and adds strict security headers."""

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
        await send({"type": "websocket.close", "code": 1008})  # before it is accepted: HTTP 403
        return
    body = b"Host, Origin: expected this server's own name and page, got another\n"
    head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    head.append((b"connection", b"close"))  # ignore the rest of the request
    await send({"type": "http.response.start", "status": 403, "headers": head})
    await send({"type": "http.response.body", "body": body})
