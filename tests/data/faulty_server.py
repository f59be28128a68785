"""A server in this process that breaks off, changes its files and forgets, as a test asks, and what it serves."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ripe_mambaspike.data.mirrors import Archive

DATA = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(10_000))  # 320,000 bytes, no two places alike
OTHER = bytes(reversed(DATA))


@dataclass
class Page:
    """What one path of the server gives."""

    data: bytes = DATA
    etag: str | None = '"one"'
    date: str | None = None
    heeds_range: bool = True
    heeds_if_range: bool = True
    announced: bool = True  # False: chunked, without a length
    status: int = 200
    location: str | None = None
    cuts: list[int] = field(default_factory=list)  # bytes of the next answers' bodies before the connection closes
    after: dict[str, object] = field(default_factory=dict)  # what changes after the first answer
    hold: threading.Event | None = None  # waited for before the second half of a body
    shift: int = 0  # added to the first byte that Content-Range names


@dataclass
class Site:
    url: str
    pages: dict[str, Page] = field(default_factory=dict)
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # path, Range, If-Range
    sent: int = 0

    def add(self, name: str, **what: object) -> str:
        self.pages[f"/{name}"] = Page(**what)
        return f"{self.url}/{name}"


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        page = self.site.pages.get(self.path, Page(status=404, data=b""))
        span, version = self.headers["Range"], self.headers["If-Range"]
        self.site.asked.append((self.path, span, version))
        start, status = 0, page.status
        if span and page.heeds_range and (not page.heeds_if_range or version in (None, page.etag or page.date)):
            start, status = int(span.removeprefix("bytes=").removesuffix("-")), 206
            if start >= len(page.data):
                start, status = len(page.data), 416
        body = page.data[start:]
        cut = page.cuts.pop(0) if page.cuts else len(body)
        self.send_response(status)
        for header, value in (("ETag", page.etag), ("Last-Modified", page.date), ("Location", page.location)):
            if value:
                self.send_header(header, value)
        if status == 206:
            first = start + page.shift
            self.send_header("Content-Range", f"bytes {first}-{len(page.data) - 1}/{len(page.data)}")
        if page.announced:
            self.send_header("Content-Length", str(len(body)))
        for name, value in page.after.items():  # before the other side can ask again
            setattr(page, name, value)
        self.end_headers()
        self.send(body[: cut // 2])
        if page.hold:
            page.hold.wait(20)
        self.send(body[cut // 2 : cut])
        self.close_connection = True

    def send(self, body: bytes) -> None:
        self.site.sent += len(body)
        with suppress(OSError):  # the other side hung up
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serve() -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass = type("Bound", (Handler,), {"site": site})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield site
    server.shutdown()
    server.server_close()
    thread.join(5)


def archive(*urls: str, data: bytes = DATA, size: int | None = None, kind: str = "md5") -> Archive:
    return Archive("set.zip", urls, size, f"{kind}:{hashlib.new(kind, data).hexdigest()}", "set")


def left(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}
