"""The server: the page, uploads, predictions and the websocket, behind the checks of `access`."""

import asyncio
import json
import os
import shutil
import socket as sockets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.events.view.frames import PALETTE
from ripe_mambaspike.live.access import OriginGuard, known_names
from ripe_mambaspike.live.library import (
    ListedRecording,
    RecordingLibrary,
    UploadError,
    check_announced_size,
    display_name,
    private_path,
    receive_upload,
)
from ripe_mambaspike.live.limits import TRY_AGAIN_LATER_CODE, ConnectionCounter, ServerLimits, TokenBucket
from ripe_mambaspike.live.messages import error_message
from ripe_mambaspike.live.network import ServedNetwork
from ripe_mambaspike.live.prediction_requests import PredictionRequests, status_of
from ripe_mambaspike.live.session import RecordingSession
from ripe_mambaspike.live.viewer import Viewer
from ripe_mambaspike.live.watched import PredictionWorker

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket

    from ripe_mambaspike.live.broadcast import LiveStream

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/record.js": ("record.js", "text/javascript; charset=utf-8"),
    "/panel.js": ("panel.js", "text/javascript; charset=utf-8"),
    "/screen.js": ("screen.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),
}
SEND_BUFFER_BYTES = 1 << 18  # to a viewer; a larger buffer would add delay for slow viewers


@dataclass
class Service:
    """State shared by the request handlers."""

    network: ServedNetwork
    listed: list[ListedRecording] = field(default_factory=list)
    live: "LiveStream | None" = None
    limits: ServerLimits = field(default_factory=ServerLimits)
    names: frozenset[str] = field(default_factory=lambda: known_names("127.0.0.1", ""))
    worker: PredictionWorker = field(default_factory=PredictionWorker)
    library: RecordingLibrary | None = None  # while it runs
    predictions: PredictionRequests | None = None
    session: RecordingSession | None = None  # on a server that records
    folder: Path | None = None
    found: int = 0  # recordings in the folder, of which some are listed
    format: str | None = None  # of the listed recordings, where it is not found by content
    viewers: int = 0
    arriving: int = 0  # uploads

    def hello(self) -> dict[str, Any]:
        return {
            "network": self.library.describe_network() if self.library else {},
            "recordings": self.library.describe() if self.library else [],
            "live": None if self.live is None else self.live.name,
            "record": None if self.session is None else self.session.describe(),
            "palette": PALETTE.ravel().tolist(),
            "upload_bytes": self.limits.upload_bytes,
        }

    def replace_network(self, network: ServedNetwork) -> None:
        """Serve another network from now on; called on the server's event loop."""
        self.network = network
        if self.library is not None:
            self.library.replace_network(network)
        if self.predictions is not None:
            self.predictions.network = network
        if self.live is not None:
            self.live.replace_network(lambda size: network.for_stream(size)[0])


def make_app(service: Service) -> "Starlette":
    """The ASGI application."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route, WebSocketRoute

    files = resources.files("ripe_mambaspike.live") / "page"
    pages = {at: ((files / name).read_bytes(), kind) for at, (name, kind) in PAGE.items()}
    uploads = TokenBucket(service.limits.uploads_a_minute / 60, service.limits.uploads_a_minute)

    async def page(request: "Request") -> "Response":
        body, kind = pages[request.url.path]
        return Response(body, media_type=kind)

    async def upload(request: "Request") -> "Response":
        try:
            if not uploads.take(asyncio.get_running_loop().time()):
                raise UploadError(
                    429, f"uploads: expected at most {service.limits.uploads_a_minute} a minute, got more"
                )
            return JSONResponse(await _take_upload(service, request))
        except UploadError as error:
            return JSONResponse({"error": error.reason}, error.status, headers={"connection": "close"})
        except RipeError as error:
            return JSONResponse({"error": str(error)}, status_of(error))

    async def predict(request: "Request") -> "Response":
        try:
            return Response(json.dumps(await _answer(service, request)), media_type="application/json")
        except UploadError as error:
            return JSONResponse({"error": error.reason}, error.status, headers={"connection": "close"})

    async def watch(socket: "WebSocket") -> None:
        await _watch(service, socket)

    @asynccontextmanager
    async def running(_: "Starlette") -> AsyncIterator[None]:
        service.folder = Path(tempfile.mkdtemp(prefix="ripe-serve-"))  # for this user alone
        service.library = RecordingLibrary(
            service.listed, service.folder, service.network, service.worker, service.limits, service.format
        )
        service.predictions = PredictionRequests(service.network, service.folder, service.limits)
        service.worker.start()
        if service.live is not None:
            service.live.start()
        try:
            yield
        finally:
            if service.session is not None:
                await service.session.close()
            if service.live is not None:
                await asyncio.to_thread(service.live.stop)
            await asyncio.to_thread(service.worker.stop)
            shutil.rmtree(service.folder, ignore_errors=True)

    routes = [
        *(Route(at, page, methods=["GET"]) for at in PAGE),
        Route("/upload", upload, methods=["POST"]),
        Route("/predict", predict, methods=["POST"]),
        WebSocketRoute("/watch", watch),
    ]
    return Starlette(routes=routes, middleware=[Middleware(OriginGuard, names=service.names)], lifespan=running)


async def _take_upload(service: Service, request: "Request") -> dict[str, Any]:
    from starlette.requests import ClientDisconnect

    limits, folder, library = service.limits, service.folder, service.library
    if folder is None or library is None:
        raise UploadError(503, "upload: the server is starting; try again soon")
    check_announced_size(request.headers.get("content-length"), limits.upload_bytes)
    if service.arriving >= limits.uploads:
        raise UploadError(503, f"uploads: expected at most {limits.uploads} at once, got one more; try again soon")
    given = request.query_params.get("name", "")
    name, path = display_name(given), private_path(folder, given)
    service.arriving += 1
    try:
        await receive_upload(request.stream(), path, limits.upload_bytes, limits.upload_seconds)
        key, recording = await library.add_upload(path, name)
    except ClientDisconnect:
        raise UploadError(400, "upload: the connection broke off") from None
    finally:
        service.arriving -= 1
        path.unlink(missing_ok=True)
    return {"upload": key, "name": recording.name, "events": len(recording.recording)}


async def _answer(service: Service, request: "Request") -> dict[str, Any]:
    from starlette.requests import ClientDisconnect

    if service.predictions is None:
        raise UploadError(503, "predict: the server is starting; try again soon")
    headers = request.headers
    check_announced_size(headers.get("content-length"), service.limits.upload_bytes)
    kind, encoding = headers.get("content-type", ""), headers.get("content-encoding")
    try:
        return await service.predictions.answer(request.stream(), kind, encoding, request.query_params.get("name", ""))
    except ClientDisconnect:
        raise UploadError(400, "upload: the connection broke off") from None


async def _watch(service: Service, socket: "WebSocket") -> None:
    from starlette.websockets import WebSocketDisconnect

    gone = (WebSocketDisconnect, RuntimeError)  # it left, or was closed meanwhile for what it sent
    library = None
    with suppress(*gone):
        library = await _welcome(service, socket)
    if library is None:
        return
    service.viewers += 1
    try:
        viewer = Viewer(socket, library, service.worker, service.live, service.limits, service.session)
        code = await viewer.run(service.hello())
    finally:
        service.viewers -= 1
    if code is not None:
        with suppress(*gone, TimeoutError):
            async with asyncio.timeout(1):  # a client that does not read will not read this either
                await socket.close(code)


async def _welcome(service: Service, socket: "WebSocket") -> RecordingLibrary | None:
    """The library, for a viewer that may watch; None if there are too many."""
    await socket.accept()
    if service.library is not None and service.viewers < service.limits.viewers:
        return service.library
    reason = f"viewers: expected at most {service.limits.viewers}, got one more; try again later"
    await socket.send_text(error_message(reason))
    await socket.close(TRY_AGAIN_LATER_CODE)
    return None


def listen(host: str, port: int) -> sockets.socket:
    """A listening socket."""
    if not 0 <= port <= 65535:
        raise InputError.expected("port", "0 (any free one) to 65535", port)
    try:
        found = sockets.getaddrinfo(host, port, type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError.expected("host", "an address of this machine, such as 127.0.0.1", f"'{host}'") from error
    family, _, _, _, address = found[0]
    try:
        made = sockets.create_server(address[:2], family=family)
        made.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, SEND_BUFFER_BYTES)  # accepted ones inherit it
        return made
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error  # its own text names the address once more
        raise InputError.expected("port", "one that is free", f"{port} on {host} ({reason})") from error


def make_server(app: "Starlette", limits: ServerLimits, counter: ConnectionCounter | None = None) -> Any:
    """A uvicorn server for the application; `server.run(sockets=[listen(…)])` serves until it is stopped.

    `counter` counts the connections, and those refused.
    """
    import uvicorn

    from ripe_mambaspike.live.connection import make_protocols

    connection, socket = make_protocols(limits, ConnectionCounter(limits.per_address) if counter is None else counter)
    config = uvicorn.Config(
        app,
        http=connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws=socket,
        ws_ping_interval=limits.stalled_seconds / 4,  # the rest is for the answer
        ws_ping_timeout=limits.stalled_seconds * 3 / 4,
        proxy_headers=False,  # the client is who connected, whatever a header says
        ws_max_size=limits.message_bytes,
        ws_per_message_deflate=False,  # frames are many and small, and mostly stay on this machine
        limit_concurrency=2 * limits.viewers + 32 + limits.waiting,
        timeout_graceful_shutdown=3,
    )
    return uvicorn.Server(config)
