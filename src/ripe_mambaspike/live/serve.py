"""`serve`: a page that plays recordings, or a live source, through a network."""

import asyncio
import importlib.util
import socket as sockets
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.reading import find_format
from ripe_mambaspike.events.region import Crop
from ripe_mambaspike.inference.classifier import Classifier, load_network
from ripe_mambaspike.inference.stream.sources import describe_source_start, open_stream
from ripe_mambaspike.live.access import check_host, is_loopback, known_names
from ripe_mambaspike.live.broadcast import LiveStream
from ripe_mambaspike.live.class_folders import ClassFolders
from ripe_mambaspike.live.library import display_name, list_recordings
from ripe_mambaspike.live.limits import ServerLimits
from ripe_mambaspike.live.network import ServedNetwork, make_served_network
from ripe_mambaspike.live.recorder import ClipRecorder
from ripe_mambaspike.live.server import Service, listen, make_app, make_server
from ripe_mambaspike.live.session import RecordingSession
from ripe_mambaspike.live.training_job import TrainingJob
from ripe_mambaspike.ops.cores import available_cores

PACKAGES = ("starlette", "uvicorn", "websockets")
SWITCH_SECONDS = 0.0005  # the interpreter's thread switch interval, so that frames are not delayed by the network


def make_service(
    classifier: Classifier,
    *,
    host: str = "127.0.0.1",
    recordings: Path | None = None,
    source: str | None = None,
    format: str | None = None,
    window_ms: float | None = None,
    hop_ms: float | None = None,
    record_to: Path | None = None,
    allow_training: bool = False,
    runs: Path = Path("runs"),
    limits: ServerLimits | None = None,
) -> Service:
    """Prepare and check what is to be served.

    host: the address that `serve` will listen on, for the names that requests may use
    recordings: a folder whose recordings are offered
    source: a live source for all viewers: udp://HOST:PORT or tcp://HOST:PORT, a camera (docs/cameras.md), a recording,
        or - for standard input
    format: name of the format of these recordings, as for `read`; uploads are still recognized by their content
    window_ms, hop_ms: by default the length of the training clips, and half of it
    record_to: a folder that viewers may record the live source to, as LABEL/001.raw; only on a loopback host
    allow_training: whether viewers may also train on that folder; the networks are written to `runs`
    """
    _check_recording(host, source, record_to, allow_training)
    check_packages()
    if format is not None:
        find_format(format)
        if recordings is None and source is None:
            raise InputError.expected("format", "recordings, or a file as the source", "neither")
    limits = limits or ServerLimits()
    names = known_names(check_host(host), sockets.gethostname())
    listed, found = ([], 0) if recordings is None else list_recordings(recordings, limits.listed)
    network = make_served_network(classifier, window_ms, hop_ms)
    live = None if source is None else _open_live(network, source, limits.frames, format)
    service = Service(network, listed, live, limits, names, found=found, format=format)
    if record_to is not None and live is not None:
        training_runs = runs if allow_training else None
        service.session = make_session(service, live, record_to, training_runs, window_ms, hop_ms)
    return service


def make_session(
    service: Service,
    live: LiveStream,
    record_to: Path,
    runs: Path | None,
    window_ms: float | None = None,
    hop_ms: float | None = None,
) -> RecordingSession:
    """Recording the live source of a service, saved below a folder; with `runs`, also training on it."""
    limits = service.limits
    folders = ClassFolders(record_to, limits.recorded_classes, limits.recorded_files, limits.recorded_bytes)
    live.recorder = ClipRecorder(limits.clip_events, limits.clip_seconds, live.missed)
    training = None if runs is None else TrainingJob(record_to, runs, limits.training_seconds)

    async def serve_trained(run: Path) -> None:
        before = service.network.classifier
        network = await asyncio.to_thread(load_trained, run, before, live.size, live.crop, window_ms, hop_ms)
        service.replace_network(network)

    return RecordingSession(folders, live.recorder, training, serve_trained)


def load_trained(
    run: Path,
    before: Classifier,
    size: tuple[int, int] | None,
    crop: Crop | None,
    window_ms: float | None = None,
    hop_ms: float | None = None,
) -> ServedNetwork:
    """The network of a run for the same source as the one before, checked and warmed up.

    A source of which a crop is drawn is also recorded as that crop, so the network has to be told of the whole sensor.
    """
    whole = (size or before.sensor_size) if crop is not None else None
    classifier = load_network(run, device=before.device.type, sensor_size=whole, crop=crop)
    network = make_served_network(classifier, window_ms, hop_ms)
    if size is not None:
        network.for_stream(size)
    network.warm_up()
    return network


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


def _check_recording(host: str, source: str | None, record_to: Path | None, allow_training: bool) -> None:
    """Writing and training are for this machine alone: there is no password."""
    if allow_training and record_to is None:
        raise InputError.expected("allow_training", "a folder with the recordings (--record-to)", "none")
    if record_to is None:
        return
    if source is None:
        raise InputError.expected("record_to", "a live source to record (--source)", "none")
    if not is_loopback(check_host(host)):
        raise InputError.expected(
            "record_to", "a host that only this machine can reach, such as 127.0.0.1", f"'{host}'"
        )


def _open_live(network: ServedNetwork, source: str, frames: int, format: str | None) -> LiveStream:
    name = source if describe_source_start(source) else "standard input" if source == "-" else Path(source).name
    classifier = network.classifier
    opened = open_stream(
        source, sensor_size=network.given_size, region=classifier.region, keep_listening=True, format=format
    )
    return LiveStream(display_name(name), opened, lambda size: network.for_stream(size)[0], frames, classifier.crop)
