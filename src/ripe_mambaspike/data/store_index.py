"""The index of a store, a JSON file: its classes, clips, shards and splits. All of it is checked when it is read."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from ripe_mambaspike.data.listing import SPLITS, Listing
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.schema import Document, convert, read_json

INDEX = "index.json"
LAYOUT_VERSION = 1  # increased when the stored data for the same source changes
SPLIT_LETTERS = dict(zip(SPLITS, "rvt", strict=True))  # train, val, test as one letter each; '-' for neither
MAX_INDEX_BYTES = 256 << 20  # N-MNIST's 70,000 clips take 15 MiB
MAX_EVENTS = 1 << 40
MAX_TIME = 1 << 62
HINT = "prepare the dataset again"

Count = Annotated[int, Meta(ge=0, le=MAX_EVENTS)]
Side = Annotated[int, Meta(ge=1, le=1 << 16)]
Size = tuple[Side, Side]  # (width, height)


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    events: Count
    sha256: str


class ClipTable(Document, frozen=True):
    """One column per property of a clip; all columns have the same length."""

    name: Annotated[list[str], Meta(min_length=1)]
    label: list[Count]
    shard: list[Count]
    at: list[Count]  # the first event in its shard
    events: list[Annotated[int, Meta(ge=1, le=MAX_EVENTS)]]
    start_us: list[Annotated[int, Meta(ge=-MAX_TIME, le=MAX_TIME)]]  # in the recording it was taken from


COLUMNS = ClipTable.__struct_fields__


class PartitionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One way the clips are split."""

    parts: str  # a letter for each clip, see `SPLIT_LETTERS`
    checksum: str
    published: bool
    sizes: dict[str, int]


class StoreIndex(msgspec.Struct, frozen=True, kw_only=True, rename={"partitions": "cuts"}):
    set: str
    sha256: str  # of all the rest
    classes: Annotated[list[str], Meta(min_length=1)]
    sensor_size: Size  # of what is stored: the crop's, where there is one
    notes: list[str]
    troubles: list[str]  # what was wrong with the recordings
    options: dict[str, Any]  # that the dataset was listed with
    sources: dict[str, str]  # checksums of the files
    clips: ClipTable
    shards: Annotated[list[ShardEntry], Meta(min_length=1)]
    partitions: Annotated[dict[str, PartitionEntry], Meta(min_length=1)]
    crop: tuple[Count, Count, Side, Side] | None = None  # (x, y, width, height) of the sensor that was kept
    whole_size: Size | None = None  # of the sensor before the crop
    unreadable: dict[str, str] = msgspec.field(default_factory=dict)  # files that were left out, and why
    simulated: bool = False
    recipe: dict[str, Any] | None = None  # of a simulated dataset


def read_index(path: Path) -> StoreIndex:
    """Read an index and compare it with the checksum it names."""
    values = read_json(path, dict[str, Any], max_bytes=MAX_INDEX_BYTES, hint=HINT)
    layout = values.get("layout")
    if layout != LAYOUT_VERSION or isinstance(layout, bool):
        raise DataError.expected("layout", str(LAYOUT_VERSION), repr(layout)[:60], path=path, hint=HINT)
    index = convert(values, StoreIndex, origin=path, hint=HINT, finite=False)
    check_index(index, path)
    if index.sha256 != index_checksum(values):
        raise DataError.expected("sha256", "the index's own checksum", index.sha256[:80], path=path, hint=HINT)
    return index


def index_checksum(values: Mapping[str, Any]) -> str:
    """The checksum of the rest of the index, which contains the shards' checksums, so it covers every event."""
    rest = {name: value for name, value in values.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def key_of(facts: Mapping[str, Any]) -> str:
    """The key of a store: a hash of everything that determines its content."""
    return hashlib.sha256(json.dumps({"layout": LAYOUT_VERSION, **facts}, sort_keys=True).encode()).hexdigest()[:16]


def describe_listing(listing: Listing) -> dict[str, Any]:
    """The index entries for the dataset as a whole."""
    return {
        "set": listing.name,
        "classes": listing.classes,
        "notes": listing.notes,
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in listing.options.items()},
        "cuts": {
            name: {
                "parts": "".join(SPLIT_LETTERS.get(split, "-") for split in partition.parts),
                "checksum": partition.checksum,
                "published": partition.published,
                "sizes": partition.sizes(),
            }
            for name, partition in listing.partitions.items()
        },
    }


def describe_partitions(listing: Listing) -> dict[str, list[Any]]:
    """The splits of a listing, for the key."""
    return {name: [partition.checksum, partition.published] for name, partition in listing.partitions.items()}


def check_index(index: StoreIndex, path: Path) -> None:
    """Raise if the entries of an index are inconsistent."""

    def require(fits: bool, field: str, expected: str, got: object) -> None:
        if not fits:
            raise DataError.expected(field, expected, got, path=path, hint=HINT)

    require(len(set(index.classes)) == len(index.classes), "classes", "names that differ", index.classes)
    crop, whole = index.crop, index.whole_size
    if crop is not None or whole is not None:
        inside = crop and whole and crop[0] + crop[2] <= whole[0] and crop[1] + crop[3] <= whole[1]
        fits = bool(inside) and crop is not None and index.sensor_size == crop[2:]
        require(fits, "crop", "x, y, width and height of a part of whole_size", crop)
    for name in ("sources", "unreadable"):
        files = getattr(index, name)
        require(not any("\0" in file for file in files), name, "file names without NUL", files)
    version = (index.recipe or {}).get("version")
    valid = isinstance(version, int) and not isinstance(version, bool) and 0 <= version <= MAX_TIME
    require(valid or not index.simulated, "recipe", "an object with a version", index.recipe)
    _check_clips(index, require)
    for name, partition in index.partitions.items():
        lettered = len(partition.parts) == len(index.clips.name) and set(partition.parts) <= {
            *SPLIT_LETTERS.values(),
            "-",
        }
        wanted = f"a letter of rvt- for each of the {len(index.clips.name)} clips"
        require(lettered, f"cuts.{name}.parts", wanted, repr(partition.parts[:60]))
        counted = Counter(partition.parts)
        sizes = {split: counted[letter] for split, letter in SPLIT_LETTERS.items()}
        require(partition.sizes == sizes, f"cuts.{name}.sizes", str(sizes), partition.sizes)


def _check_clips(index: StoreIndex, require: Any) -> None:
    """Check that every clip lies inside its shard."""
    clips, count = index.clips, len(index.clips.name)
    for column in COLUMNS:
        length = len(getattr(clips, column))
        require(length == count, f"clips.{column}", f"one for each of the {count} clips", f"{length} entries")
    for column, most in {"label": len(index.classes) - 1, "shard": len(index.shards) - 1}.items():
        highest = max(getattr(clips, column))
        require(highest <= most, f"clips.{column}", f"ints from 0 to {most}", highest)
    ends = np.array(clips.at) + np.array(clips.events)
    beyond = np.flatnonzero(ends > np.array([shard.events for shard in index.shards])[clips.shard])
    if len(beyond):
        require(False, "clips.at", "clips that end in their shard", f"clip {int(beyond[0])}, which does not")
