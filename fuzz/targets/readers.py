"""Recordings: `read`, and `read_chunks` in pieces, which must give the same events."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.target import Target, WrongAnswer
from ripe_mambaspike.errors import ReadError, RipeError
from ripe_mambaspike.events.reading import read, read_chunks
from ripe_mambaspike.events.recording import LIMITS

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("tests", "tests/events"))
import makers

CHUNK_EVENTS = 7  # events
WORDS = {
    "aedat2": (b"#!AER-DAT2.0\r\n", b"# AEChip: ", b"\r\n#"),
    "aedat3": (b"#!AER-DAT3.1\r\n", b"#!END-HEADER\r\n", b"#Source 1: "),
    "aedat4": (b"#!AER-DAT4.0\r\n", b"IOHE", b"EVTS", b"<attr key=", b"\xff", b"&#0;", b"</node>"),
    "dat": (b"% Width ", b"% Height ", b"\n\x00\x08"),
    "evt2": (b"% evt 2.0\n", b"% geometry 640x480\n", b"% end\n"),
    "evt21": (b"% evt 2.1\n", b"% format EVT21;endianness=little\n", b"% end\n"),
    "evt3": (b"% evt 3.0\n", b"% geometry 640x480\n", b"% end\n"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", b"TREE", b"HEAP", b"SNOD", b"events", b"t_offset"),
    "npy": (b"\x93NUMPY", b"'descr': '|V1000000'", b"'shape': (1073741824,)", b"fortran_order': True", b"|O"),
    "npz": (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"'descr': '|V1000000'", b"sensor_size.npy"),
    "text": (b"x,y,t,p\n", b"t x y p\n", b"34 ", b"nan", b"1e400", b"\n\n", b"\0", b"-"),
}
SEEDS = {
    "atis": ("atis",),
    "aedat2": ("aedat2", "aedat2-davis"),
    "aedat3": ("aedat3",),
    "aedat4": ("aedat4",),
    "dat": ("dat",),
    "evt2": ("evt2",),
    "evt21": ("evt21", "evt21-swapped"),
    "evt3": ("evt3",),
    "hdf5": ("hdf5", "hdf5-compound"),
    "npy": ("npy", "npy-table"),
    "npz": ("npz", "npz-compressed"),
    "text": ("text", "csv"),
}
BARE = {"dat-bare": "dat", "evt3-bare": "evt3"}  # read with a named format, so without a header too


def make(name: str) -> Target:
    if name == "any-format":
        files = [makers.small(one)[1] for one in makers.NAMES]
        return Target(name, "readers", files, _reading("a.bin"), allowed=(RipeError,))
    if name in BARE:
        form, (file_name, data) = BARE[name], makers.small(BARE[name])
        start = sum(len(line) + 1 for line in data.split(b"\n") if line.startswith(b"%"))
        how = {"format": form, "sensor_size": (64, 64)}
        return Target(name, "readers", [data[start:], data], _reading(file_name, **how), WORDS[form], (RipeError,))
    made = [makers.small(one) for one in SEEDS[name]]
    words = WORDS.get(name, ())
    return Target(name, "readers", [data for _, data in made], _reading(made[0][0]), words, (RipeError,))


def _reading(file_name: str, **how: Any):  # type: ignore[no-untyped-def]
    def run(case: bytes, folder: Path) -> None:
        path = folder / file_name
        path.write_bytes(case)
        whole = _try(lambda: read(path, **how))
        pieces = _try(lambda: list(read_chunks(path, events=CHUNK_EVENTS, **how)))
        if isinstance(whole, RipeError) or isinstance(pieces, RipeError):
            if type(whole) is not type(pieces):
                raise WrongAnswer(f"read gives {whole!r:.200}, read_chunks {pieces!r:.200}")
            raise whole if isinstance(whole, RipeError) else ReadError("unreachable")
        _check(whole)
        events = np.concatenate([piece.events for piece in pieces]) if pieces else whole.events[:0]
        if not np.array_equal(events, whole.events):
            raise WrongAnswer(f"read gives {len(whole)} events, read_chunks {len(events)} or others")

    return run


def _try(call):  # type: ignore[no-untyped-def]
    try:
        return call()
    except RipeError as error:
        return error


def _check(recording) -> None:  # type: ignore[no-untyped-def]
    events, (width, height) = recording.events, recording.sensor_size
    if not len(events):
        return
    if events["x"].max() >= width or events["y"].max() >= height or events["p"].max() > 1:
        raise WrongAnswer(f"an event lies outside the {width}×{height} sensor, or has an invalid polarity")
    low, high = LIMITS["t"]
    if events["t"].min() < low or events["t"].max() > high:
        raise WrongAnswer(f"times go from {events['t'].min()} to {events['t'].max()}")
