"""Writing a recording: `.bin` (40-bit ATIS), `.npz`, `.npy`, `.raw` (EVT 3.0), `.aedat` (AEDAT 2.0), `.csv`."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.formats import aedat2, arrays, atis, evt3, text
from ripe_mambaspike.events.recording import EVENT, Recording, check_inside, make_events
from ripe_mambaspike.files import atomic_write

ENCODERS: dict[str, Callable[[Recording], Iterator[bytes]]] = {
    ".bin": atis.encode,
    ".npz": arrays.encode_npz,
    ".npy": arrays.encode_npy,
    ".raw": evt3.encode,
    ".aedat": aedat2.encode,
    ".csv": text.encode,
    ".txt": text.encode,
}


def write(recording: Recording, path: str | Path) -> Path:
    """Write in the format that the name's ending asks for. The file appears whole or not at all."""
    path = Path(os.fspath(path))
    encode = check_target(path)
    if not len(recording):
        raise InputError(f"there are no events to write to {path}; at least one is wanted")
    check_inside(recording)
    if recording.events.dtype != EVENT:
        recording = replace(recording, events=make_events(*(recording[name] for name in "xytp")))
    try:
        with atomic_write(path) as file:
            for part in encode(recording):
                file.write(part)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error})") from error
    return path


def check_target(path: Path) -> Callable[[Recording], Iterator[bytes]]:
    """The encoder that the name's ending asks for."""
    encode = ENCODERS.get(path.suffix.lower())
    if encode is None:
        raise InputError(f"{path} ends in '{path.suffix}'; one of {', '.join(ENCODERS)} is wanted")
    return encode
