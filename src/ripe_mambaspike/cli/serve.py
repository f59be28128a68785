"""`ripe serve`: a page that plays recordings and shows what a network makes of them, as it goes."""

import importlib.util
import os
import socket as sockets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ripe_mambaspike.cli.data.recordings import CropArea, SensorSize, print_warnings
from ripe_mambaspike.cli.stream import warn_default_window
from ripe_mambaspike.errors import InputError

if TYPE_CHECKING:
    from ripe_mambaspike.live.broadcast import LiveStream
    from ripe_mambaspike.live.network import ServedNetwork
    from ripe_mambaspike.live.server import Service

NEEDED = ("starlette", "uvicorn", "websockets")
QUICK = 0.0005  # s that the network may keep the interpreter when a frame is due


@dataclass
class ServeCommand:
    """Show on a page what a network makes of recordings or of a live source, while they play."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """The folder of a run (its best network is taken) or of a saved network."""
    port: Annotated[int, tyro.conf.arg(metavar="N")] = 8000
    """The port to listen on; 0 for any that is free."""
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1"
    """The address to listen on: this machine alone, unless another is given."""
    recordings: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """A folder whose recordings are offered."""
    source: Annotated[str | None, tyro.conf.arg(metavar="udp://HOST:PORT|FILE|-")] = None
    """A live source that all may watch, as of ripe stream: a UDP port to listen on, a recording, or standard input."""
    sensor_size: SensorSize = None
    """The sensor of recordings and of the live source, whatever they say; the one it was trained on when not given, and
    others are refused."""
    crop: CropArea = None
    """The part of the sensor that is binned and shown: left, top, width and height; as in training when not given."""
    window: Annotated[float | None, tyro.conf.arg(metavar="MS")] = None
    """How much the network looks at for one answer; a shorter recording is looked at as a whole. As long as the
    training clips (their median) when not given, and recordings up to twice that are looked at as a whole; 1500 ms for
    a network that does not know, which is said."""
    hop: Annotated[float | None, tyro.conf.arg(metavar="MS")] = None
    """How often a window begins; every half of one when not given."""
    grid: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Side of the bins' square grid; as in training when not given."""
    viewers: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Viewers at once."""
    per_address: Annotated[int, tyro.conf.arg(metavar="N")] = 16
    """Connections at once from one address; raise it where a proxy stands before many viewers."""
    frames: Annotated[int, tyro.conf.arg(metavar="N")] = 20
    """Event frames a second for each viewer."""
    upload_mb: Annotated[int, tyro.conf.arg(metavar="N")] = 256
    """The largest upload that is taken, in MB."""
    most_events: Annotated[int, tyro.conf.arg(metavar="N")] = 20_000_000
    """The most events that a recording may have."""
    most_seconds: Annotated[int, tyro.conf.arg(metavar="N")] = 1800
    """The longest that a recording may last."""

    def run(self) -> int:
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise InputError(f"ripe serve needs the package {missing[0]}; install ripe-mambaspike[serve]")
        import torch

        from ripe_mambaspike.live.access import is_loopback
        from ripe_mambaspike.live.server import listen, make_app, make_server

        sys.setswitchinterval(QUICK)
        service = self._service()
        socket = listen(self.host.strip("[]"), self.port)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores - 1))  # one core is for the frames
        service.network.warm_up()
        address, port = socket.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        print(
            f"{service.network.describe()['name']} on http://{shown}:{port}/ ({len(service.listed)} recordings listed)"
        )
        if not is_loopback(address):
            print("ripe: whoever reaches this machine can watch and upload; there is no password", file=sys.stderr)
        if self.window is None:
            warn_default_window(service.network.classifier)
        sys.stdout.flush()
        with socket:
            make_server(make_app(service), service.limits).run(sockets=[socket])
        return 0

    def _service(self) -> "Service":
        from ripe_mambaspike.deploy.export.run import is_export
        from ripe_mambaspike.inference.classifier import load_network
        from ripe_mambaspike.live.access import check_host, known_names
        from ripe_mambaspike.live.library import list_recordings
        from ripe_mambaspike.live.limits import MEGABYTE, ServerLimits
        from ripe_mambaspike.live.network import make_served_network
        from ripe_mambaspike.live.server import Service

        for option, value in (
            ("--viewers", self.viewers),
            ("--per-address", self.per_address),
            ("--frames", self.frames),
            ("--upload-mb", self.upload_mb),
            ("--most-events", self.most_events),
            ("--most-seconds", self.most_seconds),
        ):
            if value < 1:
                raise InputError(f"{option} is {value}; a whole number of at least 1 is wanted")
        limits = ServerLimits(
            viewers=self.viewers,
            per_address=self.per_address,
            frames=self.frames,
            upload_bytes=self.upload_mb * MEGABYTE,
            events=self.most_events,
            held_events=max(3 * self.most_events, ServerLimits.held_events),
            seconds=self.most_seconds,
        )
        host = check_host(self.host)
        listed, count = ([], 0) if self.recordings is None else list_recordings(self.recordings, limits.listed)
        if count > len(listed):
            print(f"ripe: {len(listed):,} of the {count:,} recordings are offered", file=sys.stderr)
        if is_export(self.checkpoint):
            raise InputError(f"{self.checkpoint} is an export, which cannot move on step by step; a network is wanted")
        classifier = load_network(self.checkpoint, grid=self.grid, sensor_size=self.sensor_size, crop=self.crop)
        network = make_served_network(classifier, self.window, self.hop)
        return Service(network, listed, self._live(network), limits, known_names(host, sockets.gethostname()))

    def _live(self, network: "ServedNetwork") -> "LiveStream | None":
        if self.source is None:
            return None
        from ripe_mambaspike.inference.stream.sources import open_stream
        from ripe_mambaspike.live.broadcast import LiveStream
        from ripe_mambaspike.live.library import display_name

        name = display_name("standard input" if self.source == "-" else Path(self.source).name)
        shown = self.source if self.source.startswith("udp://") else name
        one = network.classifier
        with print_warnings():
            source = open_stream(self.source, sensor_size=self.sensor_size, region=one.region)
        return LiveStream(shown, source, lambda size: network.for_stream(size)[0], self.frames, one.crop)
