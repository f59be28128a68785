"""The event store: a dataset's recordings, decoded once, in memory-mapped files.

A folder with `shard-NNNNN.npy` (events, eight bytes each: µs since the clip's start, x, and y with the polarity in its
lowest bit), `index.json` (names, labels, splits, offsets, checksums). A store that has an index is complete.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.data.sets.registry import dataset_info
from ripe_mambaspike.data.store_index import HINT, INDEX, SPLIT_LETTERS, StoreIndex, read_index
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.events.recording import EVENT, Events, Recording
from ripe_mambaspike.files import atomic_write, open_regular, read_regular

STORED_EVENT = np.dtype([("t", "<u4"), ("x", "<u2"), ("yp", "<u2")])
CURRENT = "current"
KEY = re.compile(r"[0-9a-f]{16}")  # the name of a store's folder
MAX_CLIP_US = 1 << 32
# Raised by NumPy for files that are not arrays or have a wrong header.
READ_ERRORS = (
    OSError, ValueError, EOFError, SyntaxError, TypeError, KeyError, OverflowError, MemoryError, RecursionError,
)  # fmt: skip
MAX_TIMED_CLIPS = 2000  # clips whose durations give the median


def to_stored(events: Events, start_us: int) -> NDArray[np.void]:
    """Ordered events → as stored."""
    packed = np.empty(len(events), STORED_EVENT)
    packed["t"] = events["t"] - start_us
    packed["x"] = events["x"]
    packed["yp"] = events["y"] << 1 | events["p"]
    return packed


def from_stored(packed: NDArray[np.void], start_us: int = 0) -> Events:
    """As stored → events, `start_us` added to their times."""
    events = np.empty(len(packed), EVENT)
    events["x"] = packed["x"]
    events["y"] = packed["yp"] >> 1
    events["t"] = packed["t"].astype(np.int64) + start_us
    events["p"] = packed["yp"] & 1
    return events


class EventStore:
    """A complete store on disk."""

    def __init__(self, folder: Path, index: StoreIndex) -> None:
        self.folder, self.index = folder, index
        self.name = index.set
        self.key = folder.name  # a hash of everything that determines the store's content; saved with runs and networks
        self.classes = tuple(index.classes)
        self.partitions = tuple(index.partitions)
        self.sensor_size = index.sensor_size  # (width, height) of what is stored: the crop's, where it was cropped
        self.crop = index.crop  # (x, y, width, height) of the sensor that was kept; None: all of it
        self.whole_size = index.whole_size or index.sensor_size  # (width, height) of the sensor before the crop
        self.labels = np.array(index.clips.label, np.int64)

    def median_duration_us(self, members: NDArray[np.int64], most: int = MAX_TIMED_CLIPS) -> int:
        """The median duration of clips as binning sees it, last - first + 1 µs; of at most so many, evenly chosen."""
        chosen = members[np.linspace(0, len(members) - 1, min(most, len(members))).astype(np.int64)]
        shards: dict[int, NDArray[np.void]] = {}
        durations = []
        for number in chosen.tolist():
            times = self._stored(number, shards)["t"]
            durations.append(int(times[-1]) - int(times[0]) + 1)
        return int(np.median(durations))

    def __len__(self) -> int:
        return len(self.index.clips.name)

    def members(self, partition: str, split: str) -> NDArray[np.int64]:
        """The clips of one split."""
        letters = np.frombuffer(self.index.partitions[partition].parts.encode(), "S1")
        return np.flatnonzero(letters == SPLIT_LETTERS[split].encode())

    def clip(self, number: int, shards: dict[int, NDArray[np.void]] | None = None) -> Recording:
        """One clip, its times counted from its start. `shards` keeps files mapped between calls."""
        clips = self.index.clips
        events = from_stored(self._stored(number, {} if shards is None else shards))
        metadata: dict[str, Any] = {"name": clips.name[number], "start_us": clips.start_us[number]}
        if self.crop is not None:
            metadata["crop"] = self.crop
        return Recording(events, self.sensor_size, f"store/{self.name}", metadata)

    def _stored(self, number: int, shards: dict[int, NDArray[np.void]]) -> NDArray[np.void]:
        """A clip's events as stored, mapped from its shard."""
        clips = self.index.clips
        shard, start = clips.shard[number], clips.at[number]
        if shard not in shards:
            shards[shard] = self.open_shard(shard)
        return shards[shard][start : start + clips.events[number]]

    def open_shard(self, number: int) -> NDArray[np.void]:
        path, wanted = self.folder / shard_name(number), self.index.shards[number].events
        try:
            if path.exists() and not path.is_file():
                raise OSError("not a regular file")
            stored = np.load(path, mmap_mode="r", allow_pickle=False)
        except READ_ERRORS as error:
            raise DataError.expected("shard", "a file of events", f"damage ({error})", path=path, hint=HINT) from error
        if not isinstance(stored, np.memmap) or stored.dtype != STORED_EVENT or stored.shape != (wanted,):
            held = f"{stored.shape} of {stored.dtype}" if isinstance(stored, np.ndarray) else "no array"
            raise DataError.expected("shard", f"{wanted} events", held, path=path, hint=HINT)
        return stored


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.npy"


def open_store(folder: Path, name: str, key: str | None = None) -> EventStore:
    """Open a store in the folder of a dataset's stores: the one with this key, by default the current one."""
    home = folder / name
    found = current_key(home) if key is None else key
    if found is None:
        command = "sim make" if dataset_info(name).simulated else "data prepare"
        raise DataError.expected("store", f"a prepared {name}", "none", path=home, hint=f"run `ripe {command} {name}`")
    if key is not None and key not in store_keys(home):
        hint = "preparing the dataset with the same files and options makes it again"
        raise DataError.expected("store", describe_keys(home), repr(key), path=home, hint=hint)
    store = read_store(home / found)
    if store.name != name:
        raise DataError.expected("set", name, repr(store.name[:60]), path=home / found / INDEX)
    return store


def current_key(home: Path) -> str | None:
    """The key of the dataset's current store; None if there is none."""
    try:
        key = read_regular(home / CURRENT, 1024).decode().strip()
    except (OSError, ValueError):
        return None
    return key if KEY.fullmatch(key) else None


def make_current(target: Path) -> EventStore:
    """Make the store at the target the dataset's current one."""
    home = target.parent
    with atomic_write(home / CURRENT) as file:
        file.write(f"{target.name}\n".encode())
    return open_store(home.parent, home.name)


def store_keys(home: Path) -> list[str]:
    """The keys of all stores of the set in this folder; several live side by side."""
    try:
        return sorted(path.name for path in home.iterdir() if KEY.fullmatch(path.name) and (path / INDEX).is_file())
    except OSError:
        return []


def describe_keys(home: Path) -> str:
    """The existing keys, for a message."""
    current = current_key(home)
    keys = [f"{key} (current)" if key == current else key for key in store_keys(home)]
    return " or ".join(keys) or "a prepared set, of which there is none"


def read_store(folder: Path) -> EventStore:
    """The store in a folder."""
    return EventStore(folder, read_index(folder / INDEX))


def verify_store(store: EventStore) -> int:
    """Verify the index by its own checksum and the shards by the index; returns the number of events."""
    index = read_index(store.folder / INDEX)
    clips, shards = index.clips, index.shards
    total = 0
    for number, entry in enumerate(shards):
        path = store.folder / shard_name(number)
        if (found := file_checksum(path)) != entry.sha256:
            raise DataError.expected("sha256", f"{entry.sha256[:12]}…", f"{found[:12]}…", path=path, hint=HINT)
        total += len(store.open_shard(number))
    spans = sorted(zip(clips.shard, clips.at, clips.events, strict=True))
    ends: dict[int, int] = {}
    for shard, at, count in spans:
        if at != ends.get(shard, 0) or count < 1:
            where = store.folder / INDEX
            raise DataError.expected("clips.at", "clips one after the other", "overlaps or gaps", path=where, hint=HINT)
        ends[shard] = at + count
    if ends != {number: entry.events for number, entry in enumerate(shards) if entry.events}:
        where = store.folder / INDEX
        raise DataError.expected("shards", "as many events as the clips have", "others", path=where, hint=HINT)
    return total


def compare_source(store: EventStore, root: Path) -> str:
    """Whether the files that the store was made from are there and the same: 'unchanged', 'changed: …' or 'gone'."""
    differing, missing = [], 0
    for path, wanted in store.index.sources.items():
        if not (root / path).is_file():
            missing += 1
        elif wanted and file_checksum(root / path) != wanted:
            differing.append(path)
    if missing == len(store.index.sources):
        return "gone"
    if differing or missing:
        first = f", {differing[0]} first" if differing else ""
        return f"changed: {len(differing)} files differ and {missing} are missing{first}"
    return "unchanged"


def file_checksum(path: Path, kind: str = "sha256") -> str:
    """The checksum of a regular file; `kind` is sha256 or md5."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    except (OSError, ValueError) as error:  # ValueError: a name that the system cannot represent
        reason = error if isinstance(error, OSError) else str(error)
        raise DataError.expected("file", "a readable file", reason, path=path) from error
