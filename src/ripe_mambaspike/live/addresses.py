"""Who may speak to the service: a page of its own, under a name that is its own.

A page of another site can send requests to a server on this machine, and with a name of its own that it lets point
here (DNS rebinding) it could even read the answers. Browsers say where a request goes (Host) and which page sends it
(Origin): a name that is not this server's, or a page that did not come from it, is refused.
"""

import ipaddress
from urllib.parse import urlsplit

from ripe_mambaspike.errors import InputError

LOCAL = frozenset({"localhost"})
PORTS = {"http": 80, "https": 443}


def is_loopback(host: str) -> bool:
    """Whether a host to bind to is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def known_names(host: str, own_name: str) -> frozenset[str]:
    """The names that this server answers to, beside addresses in numbers, which no one can let point elsewhere."""
    return LOCAL if is_loopback(host) else LOCAL | {host.lower(), own_name.lower()} - {""}


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
    """Whether the page that asks came from here. What is no browser sends no Origin, and is no other site's page."""
    if origin is None:
        return True
    try:
        asked, own = urlsplit(origin), urlsplit(f"//{host}")
        standard = PORTS.get(asked.scheme)
        if standard is None or not asked.hostname:
            return False
        return asked.hostname == own.hostname and (asked.port or standard) == (own.port or standard)
    except ValueError:
        return False


def check_host(host: str) -> str:
    """The host to bind to, checked: an address or a name without port or path."""
    plain = host.strip("[]")
    if not plain or any(sign in plain for sign in "/@?# \0") or (":" in plain and not _is_six(plain)):
        raise InputError(f"--host is '{host}'; an address or the name of this machine is wanted")
    return plain


def _is_six(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
