"""`ripe data info`, `view` and `convert`: one recording of any format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape

from ripe_mambaspike.cli.output import console, print_json, print_message, print_table, print_warnings, printable
from ripe_mambaspike.command_options import Count, Flag, FormatName, Json, Milliseconds, SensorSize, TimeUnit, option
from ripe_mambaspike.errors import InputError


@dataclass(kw_only=True)
class RecordingOptions:
    """A recording, and what its file may not say."""

    file: Annotated[Path, tyro.conf.Positional, option("FILE")]
    """A recording of any format."""
    sensor_size: SensorSize = None
    """Width and height of the sensor, if the file does not say."""
    time_unit: TimeUnit = None
    """Unit of the times, if the format does not fix it."""
    format: FormatName = None
    strict: Flag = False
    """Refuse a recording with events outside the sensor or times that run backwards."""

    def read_options(self) -> dict[str, Any]:
        options = {"sensor_size": self.sensor_size, "time_unit": self.time_unit, "strict": self.strict}
        return {**options, "format": self.format}


@dataclass(kw_only=True)
class InfoCommand(RecordingOptions):
    """Describe a recording: format, sensor, events, duration, polarities."""

    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import describe_recording

        with print_warnings():
            facts = describe_recording(self.file, **self.read_options())
        document = {"file": printable(self.file), **facts}
        print_json(document) if self.json else _show(document)
        return 0


@dataclass(kw_only=True)
class ViewCommand(RecordingOptions):
    """Draw a recording: event frames and the rate over time."""

    out: Annotated[Path, option("FILE")]
    """What to write: a picture (.png), an animation (.gif) or a page with a player (.html)."""
    frames: Count = None
    """Number of frames."""
    window_ms: Milliseconds = None
    """Length of a frame; with --frames, so many of that length, spread evenly."""
    turn: Flag = False
    """Turn it by 180° (AEDAT 2.0 does not say which way is up)."""

    def run(self) -> int:
        from ripe_mambaspike import read, view

        if self.window_ms is not None and not 0.001 <= self.window_ms <= 1e9:
            raise InputError(f"--window-ms: expected 0.001 or more, got {self.window_ms}", field="--window-ms")
        with print_warnings():
            recording = read(self.file, **self.read_options())
        if self.turn:
            recording = recording.turned()
        window = None if self.window_ms is None else round(self.window_ms * 1000)
        view(recording, self.out, frames=self.frames, window_us=window, title=self.file.name)
        print(f"{printable(self.out)}: {len(recording):,} events")
        return 0


@dataclass(kw_only=True)
class ConvertCommand(RecordingOptions):
    """Write a recording in another format, and check that it reads back the same."""

    out: Annotated[Path, tyro.conf.Positional, option("OUT")]
    """.bin (40-bit ATIS), .npz, .npy, .raw (EVT 3.0), .aedat (AEDAT 2.0), .csv or .txt."""
    turn: Flag = False
    """Turn it by 180° (AEDAT 2.0 does not say which way is up)."""
    force: Flag = False
    """Replace an existing file."""

    def run(self) -> int:
        from ripe_mambaspike import convert_recording

        with print_warnings():
            done = convert_recording(self.file, self.out, turn=self.turn, force=self.force, **self.read_options())
        count = len(done.recording)
        print(f"{printable(self.out)}: {count:,} events, {done.size_bytes:,} bytes, reads back the same")
        if not done.keeps_sensor_size:
            width, height = done.recording.sensor_size
            note = f"this format does not keep the sensor's size; give --sensor-size {width} {height} when reading it"
            print_message(f"note: {note}")
        return 0


def _show(document: dict[str, Any]) -> None:
    width, height = document["sensor_size"]
    events, seconds = document["events"], document["duration_us"] / 1e6
    rows = [
        ("format", document["format"]),
        ("sensor", f"{width}×{height} (from {document['metadata']['sensor_size_from']})"),
        ("events", f"{events:,}"),
        ("ON / OFF", f"{document['on']:,} / {document['off']:,} ({document['on'] / events:.1%} ON)"),
        ("duration", f"{seconds:,.6f} s"),
        ("rate", f"{events / seconds:,.0f} events/s" if seconds else "–"),
        ("times", f"{document['first_us']:,} … {document['last_us']:,} µs"),
    ]
    for name, value in document["metadata"].items():
        if name == "labels":
            rows.append(("labels", f"{len(value)} spans"))
        elif name != "sensor_size_from":
            rows.append((name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)))
    # A name or a header may hold what a console takes for markup.
    print_table(console(), escape(document["file"]), ("", ""), [(name, escape(text)) for name, text in rows], left=2)
