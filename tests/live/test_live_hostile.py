"""Requests that no browser sends: each is answered or closed, nothing is left behind, and the next one is served."""

import random
import socket
from contextlib import ExitStack

import pytest

pytest.importorskip("websockets", reason="websockets is not installed (the extra serve)")

HEAD = b" HTTP/1.1\r\nHost: localhost\r\n"
UPLOAD = b"POST /upload?name=x.npz" + HEAD
PREDICT = b"POST /predict?name=x.npz" + HEAD
FORM = PREDICT + b"Content-Type: multipart/form-data; boundary=b\r\n"
REQUESTS = {
    "a chunked body that is none": UPLOAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk of 2^64 bytes": UPLOAD + b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\nx",
    "a chunk's endless extension": UPLOAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 100_000,
    "no length": UPLOAD + b"\r\nnobody knows how long this is",
    "two lengths": UPLOAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a length and chunks": UPLOAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": UPLOAD + b"Content-Length: -1\r\n\r\n",
    "a length in other digits": UPLOAD + "Content-Length: ٣\r\n\r\n".encode(),
    "a long header": b"GET /" + HEAD + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
    "many headers": b"GET /" + HEAD + b"X: a\r\n" * 20_000 + b"\r\n",
    "a long path": b"GET /" + b"a" * 100_000 + HEAD + b"\r\n",
    "a NUL in the path": b"GET /\0" + HEAD + b"\r\n",
    "an encoded NUL in the name": b"POST /upload?name=a%00b%2f..%2f..%2fc.npz" + HEAD + b"Content-Length: 3\r\n\r\nabc",
    "half a code point in the name": b"POST /upload?name=%ed%a0%80.npz" + HEAD + b"Content-Length: 3\r\n\r\nabc",
    "many names": b"POST /upload?" + b"name=a&" * 2000 + HEAD + b"Content-Length: 3\r\n\r\nabc",
    "a prediction without a length": PREDICT + b"\r\nnobody knows how long this is",
    "a prediction of 2^64 bytes": PREDICT + b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\nx",
    "a prediction that breaks off": PREDICT + b"Content-Length: 5000\r\n\r\nbegun",
    "an encoded NUL in a prediction": b"POST /predict?name=a%00b%2f..%2fc.npz" + HEAD + b"Content-Length: 3\r\n\r\nabc",
    "two content types": PREDICT + b"Content-Type: a/b\r\nContent-Type: c/d\r\nContent-Length: 3\r\n\r\nabc",
    "a form of boundaries": FORM + b"Content-Length: 4000\r\n\r\n" + b"--b\r\n" * 800,
    "a form that breaks off": FORM + b"Content-Length: 60\r\n\r\n--b\r\nContent-Disposition: form-data; filename=x.npz",
    "a form with a name of bytes": FORM + b"Content-Length: 71\r\n\r\n--b\r\nContent-Disposition: form-data; "
    b'filename="\xff\x00../"\r\n\r\nabc\r\n--b--\r\n',
    "another method": b"TRACE /" + HEAD + b"\r\n",
    "a tunnel": b"CONNECT example.org:443" + HEAD + b"\r\n",
    "an address as path": b"GET http://example.org/" + HEAD + b"\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "lines of another kind": b"GET / HTTP/1.1\nHost: localhost\n\n",
    "a folded header": b"GET /" + HEAD + b"X: a\r\n b\r\n\r\n",
    "a websocket without a key": b"GET /watch" + HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a websocket elsewhere": b"GET /upload" + HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
}  # fmt: skip

STATUSES = (b"", b"200", b"400", b"403", b"404", b"405", b"415", b"426", b"431")  # none: it was closed


def ask(running, data):
    """What is answered to these bytes, after which nothing more is sent."""
    said = b""
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as link:
        try:
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            while piece := link.recv(1 << 16):
                said += piece
        except OSError:
            pass  # it was closed while it was being sent
    return said


def is_idle(running):
    """Whether no request is under way, and none has left a file."""
    service = running.service
    return service.arriving == service.predictions.active == 0 and not list(service.folder.iterdir())


@pytest.fixture(scope="module")
def patient(serving):
    """A service that gives up soon, and takes many uploads."""
    with ExitStack() as stack:
        yield serving(stack, head_seconds=1, upload_seconds=1, uploads_a_minute=10_000, per_address=64)


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_hostile_request_does_no_harm(patient, wait_until, kind):
    said = ask(patient, REQUESTS[kind])
    assert said[9:12] in STATUSES, said[:200]
    wait_until(lambda: is_idle(patient), "its end")
    assert patient.request("GET", "/")[0] == 200


def test_changed_requests_do_no_harm(patient, wait_until):
    """Bytes changed, left out and doubled in good and bad requests."""
    draw, seeds = random.Random(0), list(REQUESTS.values())
    for _ in range(150):
        data = bytearray(draw.choice(seeds)[:4000])
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(data))
            change = draw.randrange(3)
            if change == 0:
                data[at] = draw.randrange(256)
            elif change == 1:
                del data[at : at + draw.randrange(1, 9)]
            else:
                data[at:at] = data[max(0, at - draw.randrange(1, 30)) : at]
        said = ask(patient, bytes(data))
        assert said[9:12] in STATUSES, (bytes(data), said[:200])
    wait_until(lambda: is_idle(patient), "their end")
    assert patient.request("GET", "/")[0] == 200
