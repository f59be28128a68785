"""The service: the page, uploads and the websocket, behind checks of where a request goes and whence it comes."""

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
from ripe_mambaspike.live.addresses import known_names
from ripe_mambaspike.live.connection_counter import TOO_BUSY, ConnectionCounter
from ripe_mambaspike.live.engine import PredictionWorker
from ripe_mambaspike.live.guard import OriginGuard
from ripe_mambaspike.live.library import ListedRecording, RecordingLibrary, display_name
from ripe_mambaspike.live.limits import ServerLimits, TokenBucket
from ripe_mambaspike.live.network import ServedNetwork
from ripe_mambaspike.live.uploads import UploadError, check_announced, private_path, receive
from ripe_mambaspike.live.viewer import Viewer

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
    "/panel.js": ("panel.js", "text/javascript; charset=utf-8"),
    "/screen.js": ("screen.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),
}
SEND_BUFFER = 1 << 18  # bytes on the way to a viewer: a slow one is not to watch what was long ago


@dataclass
class Service:
    """What the handlers share."""

    network: ServedNetwork
    listed: list[ListedRecording] = field(default_factory=list)
    live: "LiveStream | None" = None
    limits: ServerLimits = field(default_factory=ServerLimits)
    names: frozenset[str] = field(default_factory=lambda: known_names("127.0.0.1", ""))
    engine: PredictionWorker = field(default_factory=PredictionWorker)
    library: RecordingLibrary | None = None  # while it runs
    folder: Path | None = None
    viewers: int = 0
    arriving: int = 0  # uploads

    def hello(self) -> dict[str, Any]:
        return {
            "network": self._network(),
            "recordings": self.library.describe() if self.library else [],
            "live": None if self.live is None else self.live.name,
            "palette": PALETTE.ravel().tolist(),
            "upload_bytes": self.limits.upload_bytes,
        }

    def _network(self) -> dict[str, Any]:
        """What the page says about the network; names of classes are a file's, and text to show."""
        facts = self.network.facts()
        return {**facts, "name": display_name(str(facts["name"])), "classes": [*map(display_name, facts["classes"])]}


def make_app(service: Service) -> "Starlette":
    """The service as an ASGI application."""
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
                raise UploadError(429, f"more than {service.limits.uploads_a_minute} uploads a minute; try again soon")
            return JSONResponse(await _take_upload(service, request))
        except UploadError as error:
            return JSONResponse({"error": error.sentence}, error.status, headers={"connection": "close"})
        except RipeError as error:
            return JSONResponse({"error": str(error)}, 422)

    async def watch(socket: "WebSocket") -> None:
        await _watch(service, socket)

    @asynccontextmanager
    async def running(_: "Starlette") -> AsyncIterator[None]:
        service.folder = Path(tempfile.mkdtemp(prefix="ripe-serve-"))  # for this user alone
        service.library = RecordingLibrary(
            service.listed, service.folder, service.network, service.engine, service.limits
        )
        service.engine.start()
        if service.live is not None:
            service.live.start()
        try:
            yield
        finally:
            if service.live is not None:
                await asyncio.to_thread(service.live.stop)
            await asyncio.to_thread(service.engine.stop)
            shutil.rmtree(service.folder, ignore_errors=True)

    routes = [
        *(Route(at, page, methods=["GET"]) for at in PAGE),
        Route("/upload", upload, methods=["POST"]),
        WebSocketRoute("/watch", watch),
    ]
    return Starlette(routes=routes, middleware=[Middleware(OriginGuard, names=service.names)], lifespan=running)


async def _take_upload(service: Service, request: "Request") -> dict[str, Any]:
    from starlette.requests import ClientDisconnect

    limits, folder, library = service.limits, service.folder, service.library
    if folder is None or library is None:
        raise UploadError(503, "the service is starting; try again soon")
    check_announced(request.headers.get("content-length"), limits.upload_bytes)
    if service.arriving >= limits.uploads:
        raise UploadError(503, f"{service.arriving} uploads are arriving already; try again soon")
    given = request.query_params.get("name", "")
    name, path = display_name(given), private_path(folder, given)
    service.arriving += 1
    try:
        await receive(request.stream(), path, limits.upload_bytes, limits.upload_seconds)
        key, track = await library.take(path, name)
    except ClientDisconnect:
        raise UploadError(400, "the upload broke off") from None
    finally:
        service.arriving -= 1
        path.unlink(missing_ok=True)
    return {"upload": key, "name": track.name, "events": len(track.recording)}


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
        viewer = Viewer(socket, library, service.engine, service.live, service.limits)
        code = await viewer.run(service.hello())
    finally:
        service.viewers -= 1
    if code is not None:
        with suppress(*gone, TimeoutError):
            async with asyncio.timeout(1):  # who takes nothing does not take this either
                await socket.close(code)


async def _welcome(service: Service, socket: "WebSocket") -> RecordingLibrary | None:
    """The library, for a viewer that may watch; another is told that there are too many."""
    await socket.accept()
    if service.library is not None and service.viewers < service.limits.viewers:
        return service.library
    sentence = f"{service.viewers} viewers are watching already, which is as many as may; try again later"
    await socket.send_text(json.dumps({"kind": "error", "sentence": sentence}))
    await socket.close(TOO_BUSY)
    return None


def listen(host: str, port: int) -> sockets.socket:
    """A socket that listens; an error names the option."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port is {port}; from 0 (any that is free) to 65535 is wanted")
    try:
        found = sockets.getaddrinfo(host, port, type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host is '{host}', which is no address of this machine; 127.0.0.1 is usual") from error
    family, _, _, _, address = found[0]
    try:
        made = sockets.create_server(address[:2], family=family)
        made.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, SEND_BUFFER)  # those that are accepted take it over
        return made
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error  # its own text names the address once more
        raise InputError(f"--host {host} --port {port} cannot be listened on ({reason}); another is wanted") from error


def make_server(app: "Starlette", limits: ServerLimits, callers: ConnectionCounter | None = None) -> Any:
    """A uvicorn server for the application; `server.run(sockets=[listen(…)])` serves until it is told to stop.

    `callers` counts the connections, and those refused, for who wants to know.
    """
    import uvicorn

    from ripe_mambaspike.live.connection import bounded

    connection, socket = bounded(limits, ConnectionCounter(limits.per_address) if callers is None else callers)
    config = uvicorn.Config(
        app,
        http=connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws=socket,
        ws_ping_interval=limits.stalled_seconds / 4,  # and the rest for the answer
        ws_ping_timeout=limits.stalled_seconds * 3 / 4,
        proxy_headers=False,  # who calls is who connected, whatever a header says
        ws_max_size=limits.message_bytes,
        ws_per_message_deflate=False,  # frames are many and small, and mostly stay on this machine
        limit_concurrency=2 * limits.viewers + 32 + limits.waiting,
        timeout_graceful_shutdown=3,
    )
    return uvicorn.Server(config)
