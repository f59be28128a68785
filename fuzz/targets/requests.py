"""Requests to `ripe serve`: raw bytes to a local server, which must reply or close, and keep running."""

import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any

from fuzz.target import Target, WrongAnswer
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.live.limits import ServerLimits
from ripe_mambaspike.live.network import make_served_network
from ripe_mambaspike.live.server import Service, listen, make_app, make_server
from ripe_mambaspike.models.registry import create_model

FIELDS: dict[str, Any] = {"stage_channels": (4, 4, 4), "embed_dims": (4, 4, 4), "time_steps": 2, "in_size": 8}
LIMITS = ServerLimits(upload_seconds=2, head_seconds=1, upload_bytes=1 << 20, reading_seconds=8, uploads_a_minute=60)
UPLOAD = (
    b"POST /upload?name=a.bin HTTP/1.1\r\nhost: 127.0.0.1\r\norigin: http://127.0.0.1\r\ncontent-length: 10\r\n\r\n"
)
FORM_BODY = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n' + bytes(10) + b"\r\n--b--\r\n"
)
PREDICT = (
    b"POST /predict?name=a.bin HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: multipart/form-data; boundary=b\r\n"
    b"content-length: %d\r\n\r\n"
) % len(FORM_BODY)
WATCH = (
    b"GET /watch HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)
MESSAGE = b'\x81\x8f\x00\x00\x00\x00{"do": "pause"}'  # a masked text frame
WORDS = (
    b"transfer-encoding: chunked\r\n", b"content-length: 99999999999\r\n", b"content-length: -1\r\n", b"%00", b"../",
    b"name=<script>", b"\r\n\r\n", b"host: evil\r\n", b"expect: 100-continue\r\n", b"5\r\nabcde\r\n0\r\n\r\n",
    b"\x88\x80", b"multipart/form-data; boundary=", b"application/octet-stream", b"\r\n--b\r\n", b'filename="',
)  # fmt: skip
PAGE = b"GET / HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nconnection: close\r\n\r\n"


class Errors(logging.Handler):
    """Keeps what a server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(self.format(record))


def make(name: str) -> Target:
    logging.disable(logging.NOTSET)
    errors = Errors()
    for logger in ("uvicorn.error", "uvicorn", "asyncio", "websockets"):
        logging.getLogger(logger).addHandler(errors)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    model = create_model("nmnist", seed=0, **FIELDS)
    randomize(model, 0)
    names = tuple(map(str, range(10)))
    network = make_served_network(Classifier(model.eval(), names, 2, (8, 8), "time", False), window_ms=100, hop_ms=50)
    server = make_server(make_app(Service(network, limits=LIMITS)), LIMITS)
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    while not server.started:
        time.sleep(0.05)

    def run(case: bytes, folder: Path) -> None:
        errors.kept.clear()
        _ask(port, case, 2.5)
        if errors.kept:
            raise WrongAnswer(f"the server logged an error: {errors.kept[0][-1500:]}")
        if b" 200 " not in _ask(port, PAGE % port, 5.0)[:20]:
            raise WrongAnswer("the server does not answer any more")

    host = b"host: 127.0.0.1:%d" % port
    seeds = [(UPLOAD + bytes(10)), PREDICT + FORM_BODY, WATCH + MESSAGE, PAGE % port]
    return Target(name, "others", [seed.replace(b"host: 127.0.0.1\r\n", host + b"\r\n") for seed in seeds], run, WORDS)


def _ask(port: int, request: bytes, seconds: float) -> bytes:
    """The reply until the server closes the connection or the time is over."""
    reply = b""
    end = time.monotonic() + seconds
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while time.monotonic() < end and (piece := connection.recv(65536)):
                reply += piece[: 1 << 16]
    except OSError:
        pass
    return reply
