"""Convert a recording to another format, and describe a recording."""

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ripe_mambaspike.errors import InputError, RipeError, VerificationError
from ripe_mambaspike.events.reading import open_recording, read
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.writing import check_target, write

Size = tuple[int, int]


class Conversion(NamedTuple):
    """The result of a conversion that was read back and compared."""

    recording: Recording
    size_bytes: int
    keeps_sensor_size: bool  # whether the written file stores the sensor's size


def describe_recording(
    path: str | Path,
    *,
    sensor_size: Size | None = None,
    time_unit: str | None = None,
    strict: bool = False,
    format: str | None = None,
) -> dict[str, Any]:
    """Format, sensor, number of events, times and polarities of a recording, read in chunks."""
    opened = open_recording(path, sensor_size=sensor_size, time_unit=time_unit, strict=strict, format=format)
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


def convert_recording(
    source: str | Path,
    target: str | Path,
    *,
    sensor_size: Size | None = None,
    time_unit: str | None = None,
    strict: bool = False,
    format: str | None = None,
    turn: bool = False,
    force: bool = False,
) -> Conversion:
    """Write the recording `source` as `target`, in the format of its ending, and check that it reads back the same.

    `turn` turns it by 180°. An existing file is replaced only with `force`, and only after the new one was read back.
    """
    source, target = Path(os.fspath(source)), Path(os.fspath(target))
    check_target(target)
    if not force and _exists(target):
        raise InputError.expected("target", "a new file, or --force to replace it", "one that exists", path=target)
    recording = read(source, sensor_size=sensor_size, time_unit=time_unit, strict=strict, format=format)
    if _exists(target) and target.samefile(source):
        raise InputError.expected("target", "another file than the recording", "the recording itself", path=target)
    if turn:
        recording = recording.turned()
    try:
        # Written next to the target, so that an existing file is replaced only after the new one was read back.
        with tempfile.TemporaryDirectory(prefix=".ripe-", dir=target.parent) as folder:
            trial = write(recording, Path(folder) / f"trial{target.suffix}")
            kept_size = _read_back(recording, trial, target)
            size = trial.replace(target).stat().st_size
    except OSError as error:
        raise InputError.expected("target", "a file that can be written", error, path=target) from error
    return Conversion(recording, size, kept_size == recording.sensor_size)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise InputError.expected("target", "a file that can be written", error, path=path) from error


def _read_back(recording: Recording, path: Path, target: Path) -> Size:
    """Check that the file holds the recording's events; returns the sensor size read from the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written = read(path)
    except RipeError as error:
        reason = str(error).replace(str(path), "it")
        raise VerificationError(f"{target}: not written: it cannot be read back ({reason})", path=target) from error
    if not all(np.array_equal(written[name], recording[name]) for name in "xytp"):
        raise VerificationError(f"{target}: not written: it would read back differently", path=target)
    return written.sensor_size
