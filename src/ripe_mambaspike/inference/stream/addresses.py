"""Addresses of live sources: udp://HOST:PORT and tcp://HOST:PORT."""

import os
import re
from typing import Literal, NamedTuple

from ripe_mambaspike.errors import InputError


class SocketAddress(NamedTuple):
    """Where packets come from or go to."""

    scheme: Literal["udp", "tcp"]
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def unopened(self, error: OSError) -> InputError:
        """The error for a port that cannot be listened on."""
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error
        return InputError.expected("source", f"a {self.scheme.upper()} port that can be opened", f"{self} ({reason})")


def is_address(given: str) -> bool:
    """Whether this is udp://… or tcp://…"""
    return given.startswith(("udp://", "tcp://"))


def parse_address(given: str, field: str) -> SocketAddress:
    """udp://HOST:PORT or tcp://HOST:PORT; the error is one of `field`."""
    match = re.fullmatch(r"(udp|tcp)://(\[[0-9a-fA-F:.]+\]|[^:/\[\]]+):([0-9]{1,5})", given)
    if match is None or not 0 <= int(match[3]) <= 65535:
        wanted = "udp://HOST:PORT or tcp://HOST:PORT with a port up to 65535"
        raise InputError.expected(field, wanted, repr(given))
    return SocketAddress("udp" if match[1] == "udp" else "tcp", match[2].strip("[]"), int(match[3]))
