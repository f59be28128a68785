"""One address has so many connections and no more; its idle ones make room, and other addresses are not concerned."""

import json
import socket
import time
from contextlib import ExitStack

import pytest

from ripe_mambaspike.live.limits import MAX_EXPLAINED_REFUSALS, ConnectionCounter, address_key

pytest.importorskip("websockets", reason="websockets is not installed (the extra serve)")
from websockets.exceptions import ConnectionClosed

UPGRADE = (
    b"GET /watch HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
GET = b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("", ""),
        ("somewhere", "somewhere"),
    ],
)
def test_what_counts_as_one_address(host, key):
    assert address_key(host) == key


def test_connections_are_counted_by_address():
    callers = ConnectionCounter(2)
    for transport in "ab":
        assert callers.has_room("here")
        callers.accept(transport, "here")
    assert not callers.has_room("here")
    assert callers.has_room("there")
    told = [callers.refuse(number, "here") for number in range(MAX_EXPLAINED_REFUSALS + 3)]
    assert told == [True] * MAX_EXPLAINED_REFUSALS + [False] * 3
    assert callers.refused == MAX_EXPLAINED_REFUSALS + 3
    for _ in range(2):  # the second time it is gone already
        callers.remove("a")
        callers.remove(0)
    assert callers.has_room("here")
    assert callers.refuse("c", "here")
    for transport in ("b", "c", *range(MAX_EXPLAINED_REFUSALS)):
        callers.remove(transport)
    assert not callers._open
    assert not callers._counts  # nothing is kept of an address that has left


def connect(running):
    return socket.create_connection(("127.0.0.1", running.port), timeout=60)


def hear_to_the_end(link):
    said = b""
    try:
        while piece := link.recv(1 << 16):
            said += piece
    except ConnectionResetError:
        pass
    return said


def test_one_address_has_so_many_and_no_more(serve, watch, wait_until, packed, clip):
    running = serve(per_address=3)
    with watch(running), watch(running), watch(running) as last:
        status, headers, body = running.request("GET", "/")
        assert (status, headers["retry-after"], headers["connection"]) == (429, "10", "close")
        assert json.loads(body)["error"].startswith("connections: expected at most 3")
        status, said = running.upload(packed(clip.events))
        assert status == 429
        assert said["error"].startswith("connections: expected at most 3")
        with watch(running) as refused:
            assert refused.hello["kind"] == "error"
            assert refused.hello["message"].startswith("connections: expected at most 3")
            with pytest.raises(ConnectionClosed) as closed:
                refused.hear()
            assert closed.value.rcvd.code == 1013
        assert running.callers.refused == 3
        last.ask("play", 1)
        assert last.until("opened")["name"] == "b_short.npz"  # those that are there go on
    wait_until(lambda: running.request("GET", "/")[0] == 200, "room for another")
    wait_until(lambda: not running.callers._counts, "the end of all of them")


def test_refusals_beyond_the_limit_are_closed_without_a_reason(serve, watch):
    running = serve(per_address=1)
    with watch(running), ExitStack() as stack:
        silent = [stack.enter_context(connect(running)) for _ in range(MAX_EXPLAINED_REFUSALS)]
        with connect(running) as link:
            assert hear_to_the_end(link) == b""
        silent[0].sendall(GET)
        assert hear_to_the_end(silent[0]).startswith(b"HTTP/1.1 429")


def test_idle_connections_of_the_address_are_closed_first(serve):
    running = serve(per_address=2)
    with connect(running) as first, connect(running):
        time.sleep(1.2)  # they are idle after a second
        assert running.request("GET", "/")[0] == 200
        assert hear_to_the_end(first) == b""
    assert running.callers.refused == 0


def test_a_header_makes_no_other_address(serve, watch):
    running = serve(per_address=1)
    with watch(running):
        assert running.request("GET", "/", X_Forwarded_For="192.0.2.7")[0] == 429


@pytest.mark.slow
def test_a_viewer_that_reads_nothing_is_let_go_in_time(serve, wait_until):
    """However little it is sent: what it does not read lies in the system's buffers, and its place is given up."""
    running = serve(stalled_seconds=2, frames=1)
    config = running.server.config
    assert config.ws_ping_interval + config.ws_ping_timeout <= 2  # who answers no ping is cut off after the two
    with connect(running) as link:
        link.sendall(UPGRADE)
        wait_until(lambda: running.service.viewers == 1, "the viewer")
        wait_until(lambda: not running.server.server_state.connections, "letting it go")
        assert running.service.viewers == 0
    assert not running.callers._counts


def masked(first, data=b""):
    """A frame of a client, masked with zeros."""
    return bytes([first, 0x80 | len(data)]) + bytes(4) + data


@pytest.mark.parametrize(
    ("first", "then"), [(b"", masked(0x89, bytes(125))), (masked(0x01, b"{"), masked(0x00))], ids=["pings", "parts"]
)
def test_frames_that_are_no_messages_are_rationed(serve, wait_until, first, then):
    """Pings without end whose answers nobody reads, and parts of a message that never ends."""
    running = serve()
    with connect(running) as link:
        link.sendall(UPGRADE)
        while b"kind" not in link.recv(1 << 16):
            pass
        link.sendall(first)
        with pytest.raises(OSError, match=r"reset|pipe"):
            link.sendall(then * 1_000_000)
    wait_until(lambda: running.service.viewers == 0, "letting it go")
