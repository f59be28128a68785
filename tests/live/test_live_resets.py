"""Connections that are reset, at every stage: the log has no traceback, and nothing stays behind."""

import gc
import json
import logging
import socket
import struct
import threading
import time

import pytest

pytest.importorskip("websockets", reason="websockets is not installed (the extra serve)")

TIMES = 12  # a reset meets the server at another moment each time
HEAD = b"HTTP/1.1\r\nHost: localhost\r\n"
UPGRADE = (
    b"GET /watch " + HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def frame(data, announced=None):
    """A text frame of a client, masked with zeros; `announced` lies about its length."""
    size = len(data) if announced is None else announced
    head = bytes([0x81, 0x80 | size]) if size < 126 else bytes([0x81, 0xFE]) + struct.pack(">H", size)
    return head + bytes(4) + data


def asking(**wish):
    return frame(json.dumps(wish).encode())


REQUESTS = {
    "half a request": b"GET / HTT",
    "a request": b"GET / " + HEAD + b"\r\n",
    "many requests": (b"GET /page.js " + HEAD + b"\r\n") * 50,
    "an upload": b"POST /upload?name=x.npz " + HEAD + b"Content-Length: 5000\r\n\r\nbegun",
    "too large an upload": b"POST /upload?name=x.npz " + HEAD + b"Content-Length: 50000000\r\n\r\n" + bytes(5000),
    "too large a stream": b"POST /upload " + HEAD + b"Transfer-Encoding: chunked\r\n\r\n20000\r\n" + bytes(1 << 17),
    "a handshake": UPGRADE,
}
MESSAGES = {
    "silence": b"",
    "a viewer": asking(do="play", value=1),
    "a damaged recording": asking(do="play", value=2),
    "too long a message": asking(do="play", value=1) + frame(bytes(60_000)),
    "no text": asking(do="play", value=1) + frame(b"\xff\xfe"),
    "too many messages": asking(do="play", value=1) + asking(do="pause") * 300,
}


def begin(running, kind):
    """A connection that has sent what that kind sends."""
    link = socket.create_connection(("127.0.0.1", running.port), timeout=60)
    if kind in REQUESTS:
        link.sendall(REQUESTS[kind])
    else:
        link.sendall(UPGRADE)
        while b"kind" not in link.recv(1 << 16):  # hello, or that it may not watch
            pass
        link.sendall(MESSAGES[kind])
    return link


def reset(link):
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


@pytest.fixture
def log():
    """What the server and the loop say from when it is called on, which is after a server has set its log up."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(handler.format(record))
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]

    def listen():
        for logger in loggers:
            logger.addHandler(handler)
        return said

    yield listen
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.mark.slow  # many connections each
@pytest.mark.parametrize("viewers", [1, 32], ids=["one viewer may watch", "many may"])
@pytest.mark.parametrize("kind", [*REQUESTS, *MESSAGES])
def test_a_reset_leaves_no_traceback(serve, watch, wait_until, log, kind, viewers):
    running = serve(viewers=viewers, upload_bytes=100_000, uploads_a_minute=1000, per_address=64)
    said = log()
    with watch(running):  # the only one that may, or one of many
        for number in range(TIMES):
            link = begin(running, kind)
            if number % 3:
                time.sleep(0.004 * number)
            reset(link)
        wait_until(lambda: len(running.server.server_state.connections) == 1, "the connections' end")
    wait_until(lambda: running.service.viewers == 0, "the viewers' end")
    wait_until(lambda: not running.service.library._opening, "the end of what was being read")
    wait_until(lambda: not list(running.service.folder.iterdir()), "the files' end")
    gc.collect()  # tasks whose exception nobody took say so now
    assert [line for line in said if "Traceback" in line or "never retrieved" in line] == []


def test_a_reset_between_a_refusal_and_its_end(serve, wait_until, log, monkeypatch):
    """The moment is made long: the refusal has been written, and the connection is about to be half closed."""
    from ripe_mambaspike.live.connection import HttpConnection

    running, finish = serve(upload_bytes=100_000), HttpConnection.finish
    said, gone = log(), threading.Event()

    def finish_late(connection):
        assert gone.wait(60)
        finish(connection)

    monkeypatch.setattr(HttpConnection, "finish", finish_late)
    link = begin(running, "too large an upload")
    heard = b""
    while not heard.endswith(b"}"):  # all of the refusal
        heard += link.recv(1 << 16)
    assert heard.startswith(b"HTTP/1.1 413")
    reset(link)
    gone.set()
    wait_until(lambda: not running.server.server_state.connections, "the connection's end")
    assert [line for line in said if "Traceback" in line] == []
