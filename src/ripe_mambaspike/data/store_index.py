"""Whether the index of a store is one: every member of its kind, every clip inside its shard.

An index is a file like any other: what it says is looked at before anything is done with it.
"""

import hashlib
import json
import reprlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ripe_mambaspike.data.listing import PARTS
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import read_regular

INDEX = "index.json"
LAYOUT = 1  # goes up when what is stored for the same source changes
PART_LETTERS = dict(zip(PARTS, "rvt", strict=True))  # train, val, test as one letter each; '-' for neither
COLUMNS = ("name", "label", "shard", "at", "events", "start_us")
MAX_INDEX = 256 << 20  # bytes; that of N-MNIST's 70,000 clips has 15 MiB
MAX_EVENTS = 1 << 40
MAX_TIME = 1 << 62
MAX_SIDE = 1 << 16
HINT = "prepare the set again"


def read_index(path: Path) -> dict[str, Any]:
    """The index in a file, looked at as a whole and compared with the checksum it names."""
    try:
        index = json.loads(read_regular(path, MAX_INDEX), parse_constant=_refuse_constant)
        layout = index["layout"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is missing or damaged; {HINT}", path=path) from error
    if layout != LAYOUT or isinstance(layout, bool):
        said = reprlib.repr(layout)
        raise DataError(f"{path} is of layout {said}; {LAYOUT} is wanted: {HINT}", field="layout", path=path)
    check_index(index, path)
    if index["sha256"] != index_checksum(index):
        raise DataError(f"{path} does not have the checksum that it names; {HINT}", field="sha256", path=path)
    return dict(index)


def index_checksum(index: Mapping[str, Any]) -> str:
    """Of all that the index says but this; the shards' checksums are in it, so it stands for every event."""
    said = {name: value for name, value in index.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def check_index(index: Mapping[str, Any], path: Path) -> None:
    """Refuse an index with a member that is missing or of another kind, or a clip outside its shard."""

    def want(fits: bool, field: str, value: Any, wanted: str) -> None:
        if not fits:
            said = reprlib.repr(value)
            raise DataError(f"{path}: {field}: expected {wanted}, got {said}; {HINT}", field=field, path=path)

    def member(name: str) -> Any:
        want(name in index, name, None, "an entry")
        return index[name]

    for name in ("set", "sha256"):
        want(isinstance(member(name), str), name, index[name], "a text")
    classes = member("classes")
    want(_texts(classes) and 0 < len(classes) == len(set(classes)), "classes", classes, "names that differ")
    size = member("sensor_size")
    sides = _ints(size, 1, MAX_SIDE) and len(size) == 2
    want(sides, "sensor_size", size, f"a width and a height of 1 to {MAX_SIDE}")
    crop: Any = index.get("crop")
    whole: Any = index.get("whole_size")
    if crop is not None or whole is not None:
        fits = _ints(crop, 0, MAX_SIDE) and len(crop) == 4 and _ints(whole, 1, MAX_SIDE) and len(whole) == 2
        inside = fits and crop[0] + crop[2] <= whole[0] and crop[1] + crop[3] <= whole[1]
        want(inside and list(size) == crop[2:], "crop", crop, "x, y, width and height of a part of whole_size")
    for name in ("notes", "troubles"):
        want(_texts(member(name)), name, index[name], "a list of texts")
    want(isinstance(member("options"), dict), "options", index["options"], "an object")
    member("sources")
    for name in ("sources", "unreadable"):
        named = index.get(name, {})
        fits = isinstance(named, dict) and _texts(list(named.values())) and not any("\0" in one for one in named)
        want(fits, name, named, "files and a text for each, no NUL in a name")
    _check_clips(member("clips"), member("shards"), len(classes), want)
    _check_cuts(member("cuts"), len(index["clips"]["name"]), want)
    if index.get("simulated", False) is not False:
        recipe = index.get("recipe")
        version = recipe.get("version") if isinstance(recipe, dict) else None
        want(index["simulated"] is True, "simulated", index["simulated"], "true or false")
        want(_ints([version], 0, MAX_TIME), "recipe", recipe, "an object with a version")


def _check_clips(clips: Any, shards: Any, classes: int, want: Any) -> None:
    want(isinstance(shards, list) and bool(shards), "shards", shards, "a list of at least one shard")
    for number, shard in enumerate(shards):
        fits = isinstance(shard, dict) and isinstance(shard.get("sha256"), str)
        want(fits and _ints([shard.get("events")], 0, MAX_EVENTS), f"shards.{number}", shard, "events and sha256")
    want(isinstance(clips, dict) and set(clips) == set(COLUMNS), "clips", clips, f"the columns {', '.join(COLUMNS)}")
    want(_texts(clips["name"]) and bool(clips["name"]), "clips.name", clips["name"], "at least one name")
    limits = {"label": classes - 1, "shard": len(shards) - 1, "at": MAX_EVENTS, "events": MAX_EVENTS}
    for column, most in {**limits, "start_us": MAX_TIME}.items():
        low = -MAX_TIME if column == "start_us" else 1 if column == "events" else 0
        want(_ints(clips[column], low, most), f"clips.{column}", clips[column], f"ints from {low} to {most}")
        same = len(clips[column]) == len(clips["name"])
        want(same, f"clips.{column}", clips[column], f"one for each of the {len(clips['name'])} clips")
    ends = np.array(clips["at"]) + np.array(clips["events"])
    beyond = np.flatnonzero(ends > np.array([shard["events"] for shard in shards])[clips["shard"]])
    if len(beyond):
        number = int(beyond[0])
        want(False, "clips.at", [clips[name][number] for name in COLUMNS], "events that are in their shard")


def _check_cuts(cuts: Any, clips: int, want: Any) -> None:
    want(isinstance(cuts, dict) and bool(cuts), "cuts", cuts, "at least one cut")
    for name, cut in cuts.items():
        field = f"cuts.{name}"
        want(isinstance(cut, dict), field, cut, "an object")
        parts = cut.get("parts")
        lettered = isinstance(parts, str) and len(parts) == clips and set(parts) <= {*PART_LETTERS.values(), "-"}
        want(lettered, f"{field}.parts", parts, f"a letter of rvt- for each of the {clips} clips")
        want(isinstance(cut.get("checksum"), str), f"{field}.checksum", cut.get("checksum"), "a text")
        want(isinstance(cut.get("published"), bool), f"{field}.published", cut.get("published"), "true or false")
        counted = Counter(parts)
        sizes = {part: counted[letter] for part, letter in PART_LETTERS.items()}
        want(cut.get("sizes") == sizes, f"{field}.sizes", cut.get("sizes"), str(sizes))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _ints(value: Any, low: int, high: int) -> bool:
    return isinstance(value, list) and all(type(one) is int and low <= one <= high for one in value)


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")
