"""`ripe record`: the events of a camera into a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.markup import escape

from ripe_mambaspike.cli.output import console, print_json, print_message, print_table, print_warnings
from ripe_mambaspike.cli.signals import stop_on_signal
from ripe_mambaspike.command_options import Count, CropArea, Flag, FormatName, Json, SensorSize, option
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.region import format_size

if TYPE_CHECKING:
    from ripe_mambaspike.inference.stream.record import RecordSummary


@dataclass(kw_only=True)
class RecordCommand:
    """Record the events of a camera, or of any other source, into a file.

    ripe record --source usb:// --out clip.raw --seconds 10 records ten seconds of the first camera. The file has its
    name once it is complete: after --seconds, --events, Ctrl-C, or when the source ends (docs/cameras.md).
    """

    source: Annotated[str | None, option("ADDRESS|FILE|-")] = None
    """A camera: usb://[SERIAL] (Prophesee EVK3 and EVK4, DVXplorer, DAVIS346), inivation://[SERIAL], dv://HOST:PORT (a
    network stream of dv-processing); a port to listen on: udp://HOST:PORT, tcp://HOST:PORT; a recording; or - for
    standard input."""
    out: Annotated[Path | None, option("FILE")] = None
    """The file; its ending is its format: .raw (EVT 3.0), .aedat, .npy, .npz, .bin, .csv or .txt."""
    seconds: Annotated[float | None, option("SECONDS")] = None
    """Stop after this time of the camera's clock, from the first event on."""
    events: Count = None
    """Stop after this many events."""
    sensor_size: SensorSize = None
    """Width and height of the sensor, where the source does not say; a camera of another size is refused."""
    crop: CropArea = None
    """Keep only this part of the sensor: left, top, width and height. Its corner becomes the origin."""
    scale: SensorSize = None
    """Scale the coordinates down to this size, after the crop; events of several pixels fall together on one."""
    pace: Literal["real", "fast"] = "real"
    """Replay a recording at its own pace, or as fast as possible."""
    format: FormatName = None
    queue: Annotated[int, option("EVENTS")] = 8_000_000
    """Keep at most this many events waiting for the disk; beyond that standard input and connections are made to wait,
    and of other live sources the oldest events are dropped and counted."""
    force: Flag = False
    """Replace the file if it exists."""
    list: Flag = False
    """List the cameras that are connected, with the address of each, and record nothing."""
    json: Json = False

    def run(self) -> int:
        if self.list:
            return self._list()
        for name in ("source", "out"):
            if getattr(self, name) is None:
                raise InputError.expected(name, "one (or --list)", "none")
        assert self.source is not None
        assert self.out is not None
        from ripe_mambaspike.inference.stream.record import record
        from ripe_mambaspike.inference.stream.sources import describe_source_start

        summaries: list[RecordSummary] = []

        def started(summary: "RecordSummary") -> None:
            summaries.append(summary)
            if (start := describe_source_start(self.source or "")) is not None:
                print_message(start)

        with stop_on_signal(quiet=True) as should_stop:
            try:
                with print_warnings():
                    record(
                        self.source, self.out, seconds=self.seconds, events=self.events, sensor_size=self.sensor_size,
                        crop=self.crop, scale=self.scale, pace=self.pace, format=self.format, queue_events=self.queue,
                        force=self.force, on_start=started, on_message=print_message, should_stop=should_stop,
                    )  # fmt: skip
            finally:
                if summaries:
                    self._show(summaries[0])
            return 130 if should_stop() else 0

    def _show(self, summary: "RecordSummary") -> None:
        if self.json:
            print_json(summary.to_dict())
            return
        out = console()
        for line in _summary_lines(summary):
            out.print(escape(line), soft_wrap=True, highlight=False)

    def _list(self) -> int:
        from ripe_mambaspike.inference.stream.connected import list_cameras

        found = list_cameras()
        if self.json:
            print_json({"cameras": [one._asdict() for one in found.cameras], "problems": found.problems})
        elif found.cameras:
            rows = [
                (one.source, one.name, one.serial or "–", one.connection, one.driver, one.problem or "–")
                for one in found.cameras
            ]
            print_table(
                console(), "Cameras", ("source", "camera", "serial", "connection", "driver", "problem"), rows, 6
            )
        for driver, reason in found.problems.items():
            print_message(f"{driver}: {reason}")
        if len(found.problems) == found.drivers:
            raise InputError.expected("list", "a driver that can be asked for cameras", "none")
        if not found.cameras and not self.json:
            print("No camera is connected.")
        return 0


def _summary_lines(summary: "RecordSummary") -> list[str]:
    duration = summary.duration_us / 1e6
    rate = f"{summary.events / duration:,.0f} events/s" if duration else "one moment"
    if not summary.events:
        return [f"nothing was recorded in {summary.seconds:.1f} s"]
    lines = [
        f"{summary.path}: {summary.events:,} events of {duration:.3f} s ({rate}), "
        f"{format_size(summary.sensor_size)}, {summary.bytes:,} bytes; {summary.ended}"
    ]
    if summary.sensor_size != summary.source_size:
        lines.append(f"the source's sensor is {format_size(summary.source_size)}: cropped or scaled as asked")
    names = {"queue": "dropped, as the disk was too slow", "outside the crop": "outside the crop"}
    lines += [f"events {names[reason]}: {count:,}" for reason, count in summary.dropped.items()]
    lines += [f"{name}: {count:,}" for name, count in summary.losses.items()]
    if summary.lost_packets:
        lines.append(f"datagrams lost before they were read: {summary.lost_packets:,}")
    if summary.invalid_packets:
        lines.append(f"invalid packets: {summary.invalid_packets:,} (the last: {summary.last_invalid})")
    if summary.backwards:
        lines.append(f"times that run back: {summary.backwards:,}")
    lines += [f"not recorded: {count:,} {name}" for name, count in summary.other.items()]
    return lines
