"""The event store: a set's recordings, decoded once, in files that are mapped into memory.

A folder with `shard-NNNNN.npy` (events, eight bytes each: µs since the clip's start, x, and y with the polarity in its
lowest bit), `index.json` (names, labels, parts, places, checksums). A store that has an index is whole.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.data.listing import PARTS
from ripe_mambaspike.data.sets.registry import SIMULATED
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.events.recording import EVENT, Events, Recording
from ripe_mambaspike.events.region import Crop, check_crop

STORED = np.dtype([("t", "<u4"), ("x", "<u2"), ("yp", "<u2")])
LAYOUT = 1  # goes up when what is stored for the same source changes
INDEX = "index.json"
CURRENT = "current"
LETTERS = dict(zip(PARTS, "rvt", strict=True))  # train, val, test as one letter each; '-' for neither
LONGEST = 1 << 32
MOST_TIMED = 2000  # clips whose durations tell the median


def pack(events: Events, start_us: int) -> NDArray[np.void]:
    """Ordered events → as stored."""
    packed = np.empty(len(events), STORED)
    packed["t"] = events["t"] - start_us
    packed["x"] = events["x"]
    packed["yp"] = events["y"] << 1 | events["p"]
    return packed


def unpack(packed: NDArray[np.void], start_us: int = 0) -> Events:
    """As stored → events, `start_us` added to their times."""
    events = np.empty(len(packed), EVENT)
    events["x"] = packed["x"]
    events["y"] = packed["yp"] >> 1
    events["t"] = packed["t"].astype(np.int64) + start_us
    events["p"] = packed["yp"] & 1
    return events


@dataclass(frozen=True)
class EventStore:
    """A whole store on disk."""

    folder: Path
    index: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.index["set"])

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.index["classes"])

    @property
    def cuts(self) -> tuple[str, ...]:
        return tuple(self.index["cuts"])

    @property
    def sensor_size(self) -> tuple[int, int]:
        """(width, height) of what is stored: the crop's, where the set was cropped."""
        width, height = self.index["sensor_size"]
        return int(width), int(height)

    @property
    def crop(self) -> Crop | None:
        """(x, y, width, height) of the sensor that was kept; None: all of it."""
        return None if self.index.get("crop") is None else check_crop(self.index["crop"])

    @property
    def whole_size(self) -> tuple[int, int]:
        """(width, height) of the sensor before the crop."""
        width, height = self.index.get("whole_size") or self.sensor_size
        return int(width), int(height)

    def median_duration_us(self, members: NDArray[np.int64], most: int = MOST_TIMED) -> int:
        """The median duration of clips as binning sees it, last - first + 1 µs; of at most so many, evenly chosen."""
        chosen = members[np.linspace(0, len(members) - 1, min(most, len(members))).astype(np.int64)]
        shards: dict[int, NDArray[np.void]] = {}
        durations = []
        for number in chosen.tolist():
            shard, at, count = self._place(number)
            if shard not in shards:
                shards[shard] = self.open_shard(shard)
            times = shards[shard]["t"]
            durations.append(int(times[at + count - 1]) - int(times[at]) + 1)
        return int(np.median(durations))

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        return np.array(self.index["clips"]["label"], np.int64)

    def __len__(self) -> int:
        return len(self.index["clips"]["name"])

    def members(self, cut: str, part: str) -> NDArray[np.int64]:
        """The clips of one part."""
        letters = np.frombuffer(self.index["cuts"][cut]["parts"].encode(), "S1")
        return np.flatnonzero(letters == LETTERS[part].encode())

    def clip(self, number: int, shards: dict[int, NDArray[np.void]] | None = None) -> Recording:
        """One clip, its times counted from its start. `shards` keeps files mapped between calls."""
        clips = self.index["clips"]
        shard, at, count = self._place(number)
        kept = {} if shards is None else shards
        if shard not in kept:
            kept[shard] = self.open_shard(shard)
        metadata = {"name": clips["name"][number], "start_us": clips["start_us"][number]}
        if self.crop is not None:
            metadata["crop"] = self.crop
        return Recording(unpack(kept[shard][at : at + count]), self.sensor_size, f"store/{self.name}", metadata)

    def _place(self, number: int) -> tuple[int, int, int]:
        """A clip's shard, where in it the clip begins, and how many events it has."""
        clips = self.index["clips"]
        return int(clips["shard"][number]), int(clips["at"][number]), int(clips["events"][number])

    def open_shard(self, number: int) -> NDArray[np.void]:
        path, wanted = self.folder / shard_name(number), self.index["shards"][number]["events"]
        try:
            stored = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError, SyntaxError) as error:
            raise DataError(f"{path} is missing or damaged ({error}); prepare the set again") from error
        if stored.dtype != STORED or stored.shape != (wanted,):
            raise DataError(f"{path} holds {stored.shape} of {stored.dtype}; {wanted} events are wanted")
        return stored


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.npy"


def open_store(folder: Path, name: str) -> EventStore:
    """The current store of a set, in the folder of its stores."""
    pointer = folder / name / CURRENT
    try:
        key = pointer.read_text().strip()
    except (OSError, ValueError) as error:
        command = "sim make" if name in SIMULATED else "data prepare"
        raise DataError(f"{folder} holds no prepared {name}; run `ripe {command} {name}` first") from error
    return read_store(folder / name / key)


def read_store(folder: Path) -> EventStore:
    """The store in a folder."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_text())
        if index["layout"] != LAYOUT:
            raise DataError(f"{path} is of layout {index['layout']}; {LAYOUT} is wanted: prepare the set again")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is missing or damaged; prepare the set again") from error
    return EventStore(folder, index)


def index_checksum(index: Mapping[str, Any]) -> str:
    """Of all that the index says but this."""
    said = {name: value for name, value in index.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def verify_store(store: EventStore) -> int:
    """Check every byte, the index against its own checksum and the shards against the index; the number of events."""
    if store.index.get("sha256") != index_checksum(store.index):
        raise DataError(f"{store.folder / INDEX} does not have the checksum that it names; prepare the set again")
    clips, shards = store.index["clips"], store.index["shards"]
    total = 0
    for number, facts in enumerate(shards):
        path = store.folder / shard_name(number)
        if file_checksum(path) != facts["sha256"]:
            raise DataError(f"{path} does not have the checksum that its index names; prepare the set again")
        total += len(store.open_shard(number))
    lengths = {len(column) for column in clips.values()} | {len(cut["parts"]) for cut in store.index["cuts"].values()}
    if len(lengths) != 1:
        raise DataError(f"{store.folder / INDEX} has columns of {sorted(lengths)} clips; prepare the set again")
    places = sorted(zip(clips["shard"], clips["at"], clips["events"], strict=True))
    ends: dict[int, int] = {}
    for shard, at, count in places:
        if at != ends.get(shard, 0) or count < 1:
            raise DataError(f"{store.folder / INDEX} has clips that overlap or leave gaps; prepare the set again")
        ends[shard] = at + count
    if ends != {number: facts["events"] for number, facts in enumerate(shards)}:
        raise DataError(f"{store.folder / INDEX} does not agree with the shards; prepare the set again")
    return total


def compare_source(store: EventStore, root: Path) -> str:
    """Whether the files that the store was made from are there and the same: 'unchanged', 'changed: …' or 'gone'."""
    differing, missing = [], 0
    for path, wanted in store.index["sources"].items():
        if not (root / path).is_file():
            missing += 1
        elif file_checksum(root / path) != wanted:
            differing.append(path)
    if missing == len(store.index["sources"]):
        return "gone"
    if differing or missing:
        first = f", {differing[0]} first" if differing else ""
        return f"changed: {len(differing)} files differ and {missing} are missing{first}"
    return "unchanged"


def file_checksum(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from error
