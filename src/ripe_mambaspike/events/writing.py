"""Writing a recording: `.bin` (40-bit ATIS), `.npz`, `.npy`, `.raw` (EVT 3.0), `.aedat` (AEDAT 2.0), `.csv`."""

import os
from dataclasses import replace
from pathlib import Path

import ripe_mambaspike.events.formats  # noqa: F401  (registers them)
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import EVENT, Recording, check_inside, make_events
from ripe_mambaspike.events.registry import ENCODERS, Encoder
from ripe_mambaspike.files import write_file


def write(recording: Recording, path: str | Path) -> Path:
    """Write a recording in the format of the file's suffix. The file is written atomically.

    Args:
        recording: the recording
        path: a file that ends in .bin, .npz, .npy, .raw, .aedat, .csv or .txt

    Returns:
        The path.
    """
    path = Path(os.fspath(path))
    encode = check_target(path)
    if not len(recording):
        raise InputError.expected("events", "at least one", "none", path=path)
    check_inside(recording)
    if recording.events.dtype != EVENT:
        recording = replace(recording, events=make_events(*(recording[name] for name in "xytp")))
    return write_file(path, encode(recording))


def check_target(path: Path) -> Encoder:
    """The encoder for the file's suffix."""
    encode = ENCODERS.get(path.suffix.lower())
    if encode is None:
        raise InputError.expected(
            "path", f"a name that ends in one of {', '.join(ENCODERS)}", repr(path.suffix), path=path
        )
    return encode
