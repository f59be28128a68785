"""`ripe serve`: a page that plays recordings, or a live source, through a network."""

from dataclasses import dataclass
from typing import Annotated

from ripe_mambaspike.cli.network_options import NetworkOptions, warn_default_window
from ripe_mambaspike.cli.output import print_message, print_warnings
from ripe_mambaspike.command_options import Folder, FormatName, Milliseconds, Number, option
from ripe_mambaspike.errors import InputError


@dataclass(kw_only=True)
class ServeCommand(NetworkOptions):
    """Serve a page that plays recordings, or a live source, through a network."""

    port: Number = 8000
    """The port to listen on; 0 for any free one."""
    host: Annotated[str, option("ADDRESS")] = "127.0.0.1"
    """The address to listen on; by default only this machine can connect."""
    recordings: Folder = None
    """A folder whose recordings are offered."""
    source: Annotated[str | None, option("ADDRESS|FILE|-")] = None
    """A live source for all viewers, as for ripe stream: a UDP or TCP port to listen on (udp://HOST:PORT,
    tcp://HOST:PORT), a camera (usb://, inivation://, dv://HOST:PORT), a recording, or - for standard input."""
    format: FormatName = None
    record_to: Folder = None
    """A folder that viewers may record the live source to, as LABEL/001.raw; the server must then be reachable from
    this machine alone."""
    allow_training: bool = False
    """Let viewers train on the folder of --record-to (recipe few) and serve the new network; it is written to runs/."""
    window: Milliseconds = None
    """Length of a window; a shorter recording is one window. Default: that of the training clips (their median), or
    1500 ms if the network does not store it; recordings of up to twice that length are then one window."""
    hop: Milliseconds = None
    """Time between the starts of two windows. Default: half a window."""
    viewers: Number = 32
    """Largest number of viewers at a time."""
    per_address: Number = 16
    """Largest number of connections from one address at a time; raise it behind a proxy."""
    frames: Number = 20
    """Event frames per second for each viewer."""
    upload_mb: Number = 256
    """The largest upload, in MB."""
    max_events: Number = 20_000_000
    """The most events of a recording."""
    max_seconds: Number = 1800
    """The longest recording, in seconds."""

    def run(self) -> int:
        from ripe_mambaspike.live.access import is_loopback
        from ripe_mambaspike.live.limits import MEGABYTE, ServerLimits
        from ripe_mambaspike.live.serve import check_packages, make_service, serve

        check_packages()
        for name in ("viewers", "per_address", "frames", "upload_mb", "max_events", "max_seconds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1, got {getattr(self, name)}", field=name)
        limits = ServerLimits(
            viewers=self.viewers, per_address=self.per_address, frames=self.frames, seconds=self.max_seconds,
            upload_bytes=self.upload_mb * MEGABYTE, events=self.max_events,
            held_events=max(3 * self.max_events, ServerLimits.held_events),
        )  # fmt: skip
        classifier = self.load()
        with print_warnings():
            service = make_service(
                classifier, host=self.host, recordings=self.recordings, source=self.source, format=self.format,
                window_ms=self.window, hop_ms=self.hop, record_to=self.record_to, allow_training=self.allow_training,
                limits=limits,
            )  # fmt: skip
        if service.found > len(service.listed):
            print_message(f"{len(service.listed):,} of the {service.found:,} recordings are offered")

        def print_start(address: str, port: int) -> None:
            shown = f"[{address}]" if ":" in address else address
            listed = len(service.listed)
            print(f"{classifier.model.name} on http://{shown}:{port}/ ({listed} recordings listed)", flush=True)
            if self.record_to is not None:
                may = "record to this folder and train on it" if self.allow_training else "record to this folder"
                print_message(f"{self.record_to}: everyone on this machine can {may}")
            if not is_loopback(address):
                print_message("warning: everyone who can connect to this machine can watch and upload recordings")
            if self.window is None:
                warn_default_window(classifier)

        serve(service, host=self.host, port=self.port, on_start=print_start)
        return 0
