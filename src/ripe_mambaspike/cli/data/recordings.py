"""`ripe data info`, `view` and `convert`: one recording of any format."""

import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.markup import escape

from ripe_mambaspike.cli.output import console, print_json, print_table
from ripe_mambaspike.errors import InputError, RipeError, VerificationError

if TYPE_CHECKING:
    from ripe_mambaspike.events.recording import Recording

File = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
SensorSize = Annotated[tuple[int, int] | None, tyro.conf.arg(metavar="W H")]
CropArea = Annotated[tuple[int, int, int, int] | None, tyro.conf.arg(metavar="X Y W H")]
TimeUnit = Literal["s", "ms", "us", "ns"] | None


@contextmanager
def print_warnings() -> Iterator[None]:
    """What is said of a recording goes to standard error, a sentence a line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        print(f"ripe: warning: {warning.message}", file=sys.stderr)


@dataclass
class InfoCommand:
    """What a recording is: format, sensor, events, duration, polarities."""

    file: File
    """A recording of any format."""
    sensor_size: SensorSize = None
    """Width and height of the sensor, where the file does not say."""
    time_unit: TimeUnit = None
    """Unit of the times, where the format does not fix it."""
    strict: bool = False
    """Refuse a recording with events outside the sensor or times that run backwards."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        with print_warnings():
            document = self._describe()
        print_json(document) if self.json else _show(document)
        return 0

    def _describe(self) -> dict[str, Any]:
        """Read once, piece by piece: a recording may be larger than memory."""
        from ripe_mambaspike.events.reading import open_recording

        opened = open_recording(self.file, sensor_size=self.sensor_size, time_unit=self.time_unit, strict=self.strict)
        first = last = None
        on = 0
        for piece in opened.pieces():
            low, high = int(piece["t"].min()), int(piece["t"].max())
            first = low if first is None else min(first, low)
            last = high if last is None else max(last, high)
            on += int(piece["p"].sum())
        opened.warn()
        start, stop = first or 0, last or 0
        return {
            "file": printable(self.file),
            "format": opened.format,
            "sensor_size": list(opened.sensor_size),
            "events": opened.events,
            "duration_us": stop - start,
            "on": on,
            "off": opened.events - on,
            "first_us": start,
            "last_us": stop,
            "warnings": list(opened.warnings),
            "metadata": opened.metadata,
        }


@dataclass
class ViewCommand:
    """Draw a recording: event frames and the rate over time."""

    file: File
    """A recording of any format."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """What to write: a picture (.png), an animation (.gif) or a page with a player (.html)."""
    frames: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Number of frames."""
    window_ms: Annotated[float | None, tyro.conf.arg(metavar="MS")] = None
    """Length of a frame; with --frames, so many of that length, spread evenly."""
    sensor_size: SensorSize = None
    """Width and height of the sensor, where the file does not say."""
    time_unit: TimeUnit = None
    """Unit of the times, where the format does not fix it."""
    strict: bool = False
    """Refuse a recording with events outside the sensor or times that run backwards."""
    turn: bool = False
    """Turn it by 180° (AEDAT 2.0 does not say which way is up)."""

    def run(self) -> int:
        from ripe_mambaspike.events.reading import read
        from ripe_mambaspike.events.view import view

        if self.window_ms is not None and not 0.001 <= self.window_ms <= 1e9:
            raise InputError(f"--window-ms is {self.window_ms}; at least 0.001 is wanted")
        with print_warnings():
            recording = read(self.file, sensor_size=self.sensor_size, time_unit=self.time_unit, strict=self.strict)
        if self.turn:
            recording = recording.turned()
        window = None if self.window_ms is None else round(self.window_ms * 1000)
        view(recording, self.out, frames=self.frames, window_us=window, title=self.file.name)
        print(f"{printable(self.out)}: {len(recording):,} events")
        return 0


@dataclass
class ConvertCommand:
    """Write a recording in another format, and check that it reads back the same."""

    file: File
    """A recording of any format."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """.bin (40-bit ATIS), .npz, .npy, .raw (EVT 3.0), .aedat (AEDAT 2.0), .csv or .txt."""
    sensor_size: SensorSize = None
    """Width and height of the sensor, where the file does not say."""
    time_unit: TimeUnit = None
    """Unit of the times, where the format does not fix it."""
    strict: bool = False
    """Refuse a recording with events outside the sensor or times that run backwards."""
    turn: bool = False
    """Turn it by 180° (AEDAT 2.0 does not say which way is up)."""
    force: bool = False
    """Write over a file that is there."""

    def run(self) -> int:
        from ripe_mambaspike.events.reading import read
        from ripe_mambaspike.events.writing import check_target, write

        check_target(self.out)
        if not self.force and self._is_there():
            raise InputError(f"{self.out} is there already; another name or --force is wanted")
        with print_warnings():
            recording = read(self.file, sensor_size=self.sensor_size, time_unit=self.time_unit, strict=self.strict)
        if self._is_there() and self.out.samefile(self.file):
            raise InputError(f"{self.out} is the recording itself; another name is wanted")
        if self.turn:
            recording = recording.turned()
        try:
            # Beside its place, so that what was there before goes only when the new file has been read back.
            with tempfile.TemporaryDirectory(prefix=".ripe-", dir=self.out.parent) as folder:
                trial = write(recording, Path(folder) / f"trial{self.out.suffix}")
                kept = _check_written(recording, trial, self.out)
                size = trial.replace(self.out).stat().st_size
        except OSError as error:
            raise InputError(f"{self.out} cannot be written ({error.strerror or error})") from error
        print(f"{printable(self.out)}: {len(recording):,} events, {size:,} bytes, reads back the same")
        if kept != recording.sensor_size:
            width, height = recording.sensor_size
            note = f"this format does not keep the sensor's size; --sensor-size {width} {height} gives it when read"
            print(f"ripe: note: {note}", file=sys.stderr)
        return 0

    def _is_there(self) -> bool:
        try:
            return self.out.exists()
        except OSError as error:
            raise InputError(f"{self.out} cannot be written ({error.strerror or error})") from error


def printable(path: Path) -> str:
    """The path for standard output, which takes no bytes that are not text."""
    return str(path).encode("utf-8", "replace").decode()


def _check_written(recording: "Recording", path: Path, wanted: Path) -> tuple[int, int]:
    """The file's events are the recording's; the size of the sensor by the file alone."""
    import numpy as np

    from ripe_mambaspike.events.reading import read

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written = read(path)
    except RipeError as error:
        reason = str(error).replace(str(path), "it")
        raise VerificationError(f"{wanted} was not written: {reason}, read back; another format is wanted") from error
    if not all(np.array_equal(written[name], recording[name]) for name in "xytp"):
        raise VerificationError(f"{wanted} was not written: it would not read back the same; another format is wanted")
    return written.sensor_size


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
