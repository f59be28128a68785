"""`serve`: a page that plays recordings, or a live source, through a network."""

import importlib.util
import socket as sockets
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.stream.sources import describe_source_start, open_stream
from ripe_mambaspike.live.access import check_host, known_names
from ripe_mambaspike.live.broadcast import LiveStream
from ripe_mambaspike.live.library import display_name, list_recordings
from ripe_mambaspike.live.limits import ServerLimits
from ripe_mambaspike.live.network import ServedNetwork, make_served_network
from ripe_mambaspike.live.server import Service, listen, make_app, make_server
from ripe_mambaspike.train.threads import available_cores

PACKAGES = ("starlette", "uvicorn", "websockets")
SWITCH_SECONDS = 0.0005  # the interpreter's thread switch interval, so that frames are not delayed by the network


def make_service(
    classifier: Classifier,
    *,
    host: str = "127.0.0.1",
    recordings: Path | None = None,
    source: str | None = None,
    window_ms: float | None = None,
    hop_ms: float | None = None,
    limits: ServerLimits | None = None,
) -> Service:
    """Prepare and check what is to be served.

    host: the address that `serve` will listen on, for the names that requests may use
    recordings: a folder whose recordings are offered
    source: a live source for all viewers: udp://HOST:PORT or tcp://HOST:PORT, a camera (docs/cameras.md), a recording,
        or - for standard input
    window_ms, hop_ms: by default the length of the training clips, and half of it
    """
    check_packages()
    limits = limits or ServerLimits()
    names = known_names(check_host(host), sockets.gethostname())
    listed, found = ([], 0) if recordings is None else list_recordings(recordings, limits.listed)
    network = make_served_network(classifier, window_ms, hop_ms)
    live = None if source is None else _open_live(network, source, limits.frames)
    return Service(network, listed, live, limits, names, found=found)


def serve(
    service: Service,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_start: Callable[[str, int], None] | None = None,
) -> None:
    """Serve what `make_service` prepared until interrupted; `on_start` gets the address and port before any request."""
    sys.setswitchinterval(SWITCH_SECONDS)
    socket = listen(host.strip("[]"), port)
    torch.set_num_threads(max(1, available_cores() - 1))  # one core is for the frames
    service.network.warm_up()
    if on_start is not None:
        on_start(*socket.getsockname()[:2])
    with socket:
        make_server(make_app(service), service.limits).run(sockets=[socket])


def check_packages() -> None:
    """Raise unless the packages of the extra `serve` are installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"ripe serve needs the package {missing[0]}; install ripe-mambaspike[serve]")


def _open_live(network: ServedNetwork, source: str, frames: int) -> LiveStream:
    name = source if describe_source_start(source) else "standard input" if source == "-" else Path(source).name
    classifier = network.classifier
    opened = open_stream(source, sensor_size=network.given_size, region=classifier.region, keep_listening=True)
    return LiveStream(display_name(name), opened, lambda size: network.for_stream(size)[0], frames, classifier.crop)
