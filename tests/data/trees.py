"""Small datasets of real files, put together by the test."""

import json
import struct
from pathlib import Path

import numpy as np

from ripe_mambaspike.data.listing import Listing
from ripe_mambaspike.data.store import make_current
from ripe_mambaspike.data.store_index import INDEX, LAYOUT_VERSION, describe_listing, index_checksum
from ripe_mambaspike.events import Recording, make_events, write

AEDAT3 = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DVS128\r\n#!END-HEADER\r\n"


def make_recording(seed: int, count: int = 60, size: tuple[int, int] = (34, 34), start: int = 1000) -> Recording:
    """Random events in order, a few of them at the same time."""
    draw = np.random.default_rng(seed)
    times = start + np.sort(draw.integers(0, 20 * count, count))
    return Recording(
        make_events(
            draw.integers(0, size[0], count), draw.integers(0, size[1], count), times, draw.integers(0, 2, count)
        ),
        size,
    )


def save(path: Path, recording: Recording) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(recording, path)


def save_digits(root: Path, count: int = 12) -> Path:
    """The first recordings of N-MNIST, two digits by turns."""
    for number in range(1, count + 1):
        save(root / "Train" / str(number % 2) / f"{number:05d}.bin", make_recording(number))
    return root


def save_classes(root: Path, classes: tuple[str, ...] = ("left", "right"), each: int = 5, suffix: str = ".npz") -> Path:
    """class/recording; no two recordings have one length."""
    for label, name in enumerate(classes):
        for number in range(each):
            seed = label * each + number
            save(root / name / f"{number}{suffix}", make_recording(seed, 40 + seed, (40, 30)))
    return root


def aedat3(events: np.ndarray) -> bytes:
    """An AEDAT 3.1 file of one packet."""
    body = b"".join(
        struct.pack("<Ii", int(x) << 17 | int(y) << 2 | int(p) << 1 | 1, int(t)) for x, y, t, p in events.tolist()
    )
    return AEDAT3 + struct.pack("<hhiiiiii", 1, 1, 8, 4, 0, len(events), len(events), len(events)) + body


def save_trial(root: Path, trial: str, events: np.ndarray, spans: list[tuple[int, int, int]]) -> None:
    """One recording of DVS-Gesture and its labels: (class, start, stop)."""
    root.mkdir(parents=True, exist_ok=True)
    (root / f"{trial}.aedat").write_bytes(aedat3(events))
    rows = [f"{label},{start},{stop}" for label, start, stop in spans]
    (root / f"{trial}_labels.csv").write_text("\n".join(["class,startTime_usec,endTime_usec", *rows, ""]))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below, hidden ones too."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def save_index(root: Path, listing: Listing) -> Path:
    """The store of a listing without its events: enough to open the dataset, and to count its clips."""
    clips = listing.clips
    columns = {"name": [clip.name for clip in clips], "label": [clip.label for clip in clips]}
    columns |= {"shard": [0] * len(clips), "at": list(range(len(clips))), "events": [1] * len(clips)}
    index = {
        "layout": LAYOUT_VERSION,
        **describe_listing(listing),
        "sensor_size": listing.sensor_size,
        "troubles": [],
        "sources": {},
        "clips": {**columns, "start_us": [0] * len(clips)},
        "shards": [{"events": len(clips), "sha256": ""}],
    }
    folder = root / ".ripe" / listing.name / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / INDEX).write_text(json.dumps({**index, "sha256": index_checksum(index)}))
    make_current(folder)
    return root
