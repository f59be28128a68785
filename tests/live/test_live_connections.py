"""Connections that ask for nothing: they are let go, and keep nobody out."""

import socket
from contextlib import ExitStack, suppress

import pytest

pytest.importorskip("websockets", reason="websockets is not installed (the extra serve)")

pytestmark = pytest.mark.slow  # they wait for patience to end
PATIENCE = 60  # s
GET = b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(running):
    return socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE)


def hear_to_the_end(link):
    said = b""
    while piece := link.recv(1 << 16):
        said += piece
    return said


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: local"], ids=["silent", "half a head"])
def test_a_connection_without_a_request_is_closed(serve, wait_until, begun):
    running = serve(head_seconds=1)
    with connect(running) as link:
        link.sendall(begun)
        assert hear_to_the_end(link) == b""
    wait_until(lambda: not running.server.server_state.connections, "the connection's end")


def test_bytes_without_end_buy_no_time(serve):
    running = serve(head_seconds=1)
    with connect(running) as link:
        link.settimeout(0.05)
        for _ in range(20 * PATIENCE):
            try:
                link.sendall(b"a")
                said = link.recv(10)
            except TimeoutError:
                continue  # still held
            except OSError:
                said = b""
            break
        else:
            pytest.fail("it was held for a minute")
        assert said == b""


def test_the_rest_of_an_answered_request_does_not_extend_the_timeout(serve):
    running = serve(head_seconds=1)
    with connect(running) as link:
        link.sendall(GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 5000\r\n\r\n") + b"begun")
        assert hear_to_the_end(link).startswith(b"HTTP/1.1 200")


def test_many_that_wait_keep_nobody_out(serve, watch):
    running = serve(viewers=1, waiting=4)
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(running)) for _ in range(150)]
        for _ in range(5):
            assert running.request("GET", "/")[0] == 200
        with watch(running) as viewer:
            assert viewer.hello["kind"] == "hello"
        assert hear_to_the_end(idle[0]) == b""  # the oldest went first, long before its time


def test_a_client_that_reads_no_reply_is_closed(serve, wait_until):
    running = serve(stalled_seconds=1)
    with connect(running) as link:
        link.setblocking(False)
        with suppress(OSError):  # neither side has room for more
            while True:
                link.send(GET * 1000)
        wait_until(lambda: not running.server.server_state.connections, "the connection's end")


def test_a_connection_serves_many_requests_and_a_viewer_stays(serve, watch):
    running = serve(head_seconds=1, waiting=1)
    with watch(running) as viewer, connect(running) as link:
        for _ in range(3):
            link.sendall(GET)
            said = b""
            while b"</svg>" not in said:
                said += link.recv(1 << 16)
        assert hear_to_the_end(link) == b""  # and waits no longer than the first time
        viewer.ask("play", 1)  # more than a second after it came
        assert viewer.until("opened")["name"] == "b_short.npz"
