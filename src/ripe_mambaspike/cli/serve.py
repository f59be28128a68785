"""`ripe serve`: a page that plays recordings, or a live source, through a network."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ripe_mambaspike.cli.data.recordings import CropArea, SensorSize, print_warnings
from ripe_mambaspike.cli.stream import warn_default_window
from ripe_mambaspike.errors import InputError


@dataclass
class ServeCommand:
    """Serve a page that plays recordings, or a live source, through a network."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """The folder of a run (its best network is taken) or of a saved network."""
    port: Annotated[int, tyro.conf.arg(metavar="N")] = 8000
    """The port to listen on; 0 for any free one."""
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1"
    """The address to listen on; by default only this machine can connect."""
    recordings: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """A folder whose recordings are offered."""
    source: Annotated[str | None, tyro.conf.arg(metavar="udp://HOST:PORT|FILE|-")] = None
    """A live source for all viewers, as of ripe stream: a UDP port to listen on, a recording, or standard input."""
    sensor_size: SensorSize = None
    """Width and height of the sensor, whatever recordings and the live source say; by default the one of training."""
    crop: CropArea = None
    """The part of the sensor that is binned and shown: left, top, width and height; by default as in training."""
    window: Annotated[float | None, tyro.conf.arg(metavar="MS")] = None
    """Length of a window; a shorter recording is one window. By default the length of the training clips (their
    median), and recordings of up to twice that are one window; 1500 ms for a network that does not know it."""
    hop: Annotated[float | None, tyro.conf.arg(metavar="MS")] = None
    """Time between the starts of two windows; by default half a window."""
    grid: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Side of the bins' square grid; by default as in training."""
    viewers: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Viewers at once."""
    per_address: Annotated[int, tyro.conf.arg(metavar="N")] = 16
    """Connections at once from one address; raise it behind a proxy."""
    frames: Annotated[int, tyro.conf.arg(metavar="N")] = 20
    """Event frames a second for each viewer."""
    upload_mb: Annotated[int, tyro.conf.arg(metavar="N")] = 256
    """The largest upload, in MB."""
    max_events: Annotated[int, tyro.conf.arg(metavar="N")] = 20_000_000
    """The most events of a recording."""
    max_seconds: Annotated[int, tyro.conf.arg(metavar="N")] = 1800
    """The longest recording, in seconds."""

    def run(self) -> int:
        from ripe_mambaspike import load
        from ripe_mambaspike.live.access import is_loopback
        from ripe_mambaspike.live.limits import MEGABYTE, ServerLimits
        from ripe_mambaspike.live.serve import check_packages, make_service, serve

        check_packages()
        for name in ("viewers", "per_address", "frames", "upload_mb", "max_events", "max_seconds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1, got {getattr(self, name)}", field=name)
        limits = ServerLimits(
            viewers=self.viewers,
            per_address=self.per_address,
            frames=self.frames,
            upload_bytes=self.upload_mb * MEGABYTE,
            events=self.max_events,
            held_events=max(3 * self.max_events, ServerLimits.held_events),
            seconds=self.max_seconds,
        )
        classifier = load(self.checkpoint, grid=self.grid, sensor_size=self.sensor_size, crop=self.crop)
        with print_warnings():
            service = make_service(
                classifier,
                host=self.host,
                recordings=self.recordings,
                source=self.source,
                window_ms=self.window,
                hop_ms=self.hop,
                limits=limits,
            )
        if service.found > len(service.listed):
            print(f"ripe: {len(service.listed):,} of the {service.found:,} recordings are offered", file=sys.stderr)

        def print_start(address: str, port: int) -> None:
            shown = f"[{address}]" if ":" in address else address
            listed = len(service.listed)
            print(f"{classifier.model.name} on http://{shown}:{port}/ ({listed} recordings listed)", flush=True)
            if not is_loopback(address):
                print("ripe: anyone who reaches this machine can watch and upload", file=sys.stderr)
            if self.window is None:
                warn_default_window(classifier)

        serve(service, host=self.host, port=self.port, on_start=print_start)
        return 0
