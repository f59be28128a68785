"""What a trained network's outputs mean and how its clips were made: `labels.json` beside the weights."""

import json
import logging
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ripe_mambaspike.errors import WeightsError
from ripe_mambaspike.files import MAX_JSON, atomic_write, read_regular

LOG = logging.getLogger("ripe_mambaspike")
LABELS_FILE = "labels.json"
FORMAT = "ripe-labels"
VERSION = 2
OLDEST_VERSION = 1  # says nothing of the sensor, the clips' duration and the store
BEST = "best"
LAST = "last"  # of a run that was stopped before it picked one
CONFIG_FILE = "config.json"  # as in models.pretrained, which needs torch
MEMBERS = {"format", "version", "classes", "data", "epoch", "protocol"}
OLD_DATA_MEMBERS = {"set", "cut", "steps", "grid", "by", "binary"}
DATA_MEMBERS = OLD_DATA_MEMBERS | {"store", "sensor_size", "crop", "duration_us"}
MAX_SENSOR_SIDE = 65536
WANTED = "the file written by ripe train is wanted"


@dataclass(frozen=True)
class Labels:
    """Class names in the order of the outputs, and all that turns a recording into the clip the network was trained on.

    What is None is not known: of a network from an older version, or one that was not trained by `ripe train`.
    """

    classes: tuple[str, ...]
    set: str | None
    cut: str | None
    steps: int
    grid: tuple[int, int]  # (height, width)
    by: Literal["time", "count"]
    binary: bool
    epoch: int | None = None
    protocol: Literal["validation", "paper"] | None = None
    store: str | None = None  # the key of the prepared set it was trained on
    sensor_size: tuple[int, int] | None = None  # (width, height), before the crop
    crop: tuple[int, int, int, int] | None = None  # (x, y, width, height) of the sensor that is binned; None: all of it
    duration_us: int | None = None  # the median of the training clips' durations

    def with_classes(self, count: int, names: tuple[str, ...] | None) -> "Labels":
        """For other classes: the binning stays, nothing is said of the data. Without names they are numbers."""
        names = tuple(map(str, range(count))) if names is None else names
        return Labels(names, None, None, self.steps, self.grid, self.by, self.binary)

    def to_dict(self) -> dict[str, Any]:
        data = {
            "set": self.set,
            "cut": self.cut,
            "store": self.store,
            "sensor_size": None if self.sensor_size is None else list(self.sensor_size),
            "crop": None if self.crop is None else list(self.crop),
            "duration_us": self.duration_us,
            "steps": self.steps,
            "grid": list(self.grid),
            "by": self.by,
            "binary": self.binary,
        }
        return {
            "format": FORMAT,
            "version": VERSION,
            "classes": list(self.classes),
            "data": data,
            "epoch": self.epoch,
            "protocol": self.protocol,
        }


def packed_labels(labels: Labels, path: Path) -> bytes:
    """What `labels.json` holds; `path` is named should it be refused."""
    document = labels.to_dict()
    parse_labels(document, path)  # what could not be read again is not written
    try:
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half a character, which a file may have and UTF-8 has not
        return (json.dumps(document, indent=2) + "\n").encode()


def save_labels(labels: Labels, folder: str | Path) -> Path:
    """Write `labels.json` into the folder, which is there; the file's path."""
    path = Path(folder) / LABELS_FILE
    packed = packed_labels(labels, path)
    try:
        with atomic_write(path) as file:
            file.write(packed)
    except OSError as error:
        raise WeightsError(f"{path} cannot be written ({error.strerror or error}); a folder is wanted") from error
    return path


def read_labels(folder: str | Path) -> Labels:
    """The `labels.json` of a folder; anything missing, unknown or of another kind is refused."""
    path = Path(folder) / LABELS_FILE
    try:
        document = json.loads(read_regular(path, MAX_JSON))
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error}); {WANTED}") from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON ({error}); {WANTED}") from error
    return parse_labels(document, path)


def find_checkpoint(path: str | Path) -> Path:
    """The folder with the network: the given one, or a run's `best`, or the `last` of one that was stopped before.

    That a run has not ended is said in a warning.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            given = "is no folder" if path.exists() else "is not there"
            raise WeightsError(f"{path} {given}; the folder of a run or of a saved network is wanted")
        for folder in (path, path / BEST, path / LAST):
            if (folder / CONFIG_FILE).is_file():
                _warn_of_unfinished(folder)
                return folder
        begun = (path / "recipe.yaml").is_file() or (path / BEST).is_dir()
    except (OSError, ValueError) as error:  # a name the system cannot even look up
        reason = getattr(error, "strerror", None) or error
        raise WeightsError(f"{path} cannot be looked up ({reason}); the folder of a run is wanted") from error
    if begun:
        raise WeightsError(f"{path} is a run without a network in {BEST} yet; one that has validated once is wanted")
    raise WeightsError(f"{path} holds neither {CONFIG_FILE} nor {BEST}/{CONFIG_FILE}; a run or a network is wanted")


def _warn_of_unfinished(folder: Path) -> None:
    run = folder.resolve().parent
    if (
        folder.resolve().name not in (BEST, LAST)
        or not (run / "recipe.yaml").is_file()
        or (run / "result.json").exists()
    ):
        return
    try:
        epoch = read_labels(folder).epoch
    except WeightsError:
        epoch = None
    said = f"its {folder.name} network" + ("" if epoch is None else f", after {epoch} epochs,")
    _warn_once(f"{run}: the run has not ended; {said} is used, and nothing is reported of it yet")


@lru_cache
def _warn_once(line: str) -> None:
    LOG.warning(line)


def parse_labels(document: Any, path: Path) -> Labels:
    """A document like that of `Labels.to_dict`, checked; `path` is the file that an error names."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise WeightsError(f"{path} is not a {FORMAT} file; {WANTED}", path=path)
    version = document.get("version")
    if isinstance(version, bool) or version not in (OLDEST_VERSION, VERSION):
        raise _wrong(path, "version", version, f"{OLDEST_VERSION} or {VERSION}")
    _check_members(document, MEMBERS, "", path)
    data = document["data"]
    if not isinstance(data, dict):
        raise _wrong(path, "data", data, "an object")
    _check_members(data, OLD_DATA_MEMBERS if version == OLDEST_VERSION else DATA_MEMBERS, "data.", path)
    classes = document["classes"]
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) and name for name in classes):
        raise _wrong(path, "classes", classes, "a list of names")
    if len(set(classes)) < len(classes):
        twice = next(name for name, count in Counter(classes).items() if count > 1)
        raise WeightsError(
            f"{path}: classes: expected names that differ, got {str(twice)[:60]!r} twice", field="classes", path=path
        )
    for name in ("set", "cut", "store"):
        if data.get(name) is not None and not isinstance(data[name], str):
            raise _wrong(path, f"data.{name}", data[name], "a text or null")
    if not _is_count(data["steps"]):
        raise _wrong(path, "data.steps", data["steps"], "an int of at least 1")
    if data["by"] not in ("time", "count"):
        raise _wrong(path, "data.by", data["by"], "time or count")
    if not isinstance(data["binary"], bool):
        raise _wrong(path, "data.binary", data["binary"], "true or false")
    if data.get("duration_us") is not None and not _is_count(data["duration_us"]):
        raise _wrong(path, "data.duration_us", data["duration_us"], "an int of at least 1, or null")
    if document["epoch"] is not None and not _is_count(document["epoch"], least=0):
        raise _wrong(path, "epoch", document["epoch"], "an int of at least 0, or null")
    if document["protocol"] not in ("validation", "paper", None):
        raise _wrong(path, "protocol", document["protocol"], "validation, paper or null")
    sensor_size = _sides(data.get("sensor_size"), "data.sensor_size", path)
    return Labels(
        classes=tuple(classes),
        set=data["set"],
        cut=data["cut"],
        steps=data["steps"],
        grid=_sides(data["grid"], "data.grid", path, optional=False) or (0, 0),
        by=data["by"],
        binary=data["binary"],
        epoch=document["epoch"],
        protocol=document["protocol"],
        store=data.get("store"),
        sensor_size=sensor_size,
        crop=_crop(data.get("crop"), sensor_size, path),
        duration_us=data.get("duration_us"),
    )


def _sides(value: Any, name: str, path: Path, *, optional: bool = True) -> tuple[int, int] | None:
    if value is None and optional:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(_is_count(side) for side in value):
        raise _wrong(path, name, value, "two ints of at least 1" + ", or null" * optional)
    if max(value) > MAX_SENSOR_SIDE:
        raise _wrong(path, name, value, f"sides of at most {MAX_SENSOR_SIDE}")
    return value[0], value[1]


def _crop(value: Any, sensor_size: tuple[int, int] | None, path: Path) -> tuple[int, int, int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 4 or not all(_is_count(one, least=0) for one in value):
        raise _wrong(path, "data.crop", value, "x, y, width and height, or null")
    left, top, width, height = value
    across, down = sensor_size or (MAX_SENSOR_SIDE, MAX_SENSOR_SIDE)
    if min(width, height) < 1 or left + width > across or top + height > down:
        raise _wrong(path, "data.crop", value, f"a part of the {across}×{down} sensor")
    return left, top, width, height


def _check_members(document: dict[str, Any], wanted: set[str], prefix: str, path: Path) -> None:
    if missing := sorted(wanted - document.keys()):
        name = prefix + missing[0]
        raise WeightsError(f"{path} lacks '{name}'; {WANTED}", field=name, path=path)
    if unknown := sorted(document.keys() - wanted):
        name = prefix + unknown[0][:60]
        raise WeightsError(
            f"{path} has the unknown '{name}'; {', '.join(sorted(wanted))} are wanted", field=name, path=path
        )


def _wrong(path: Path, name: str, value: Any, wanted: str) -> WeightsError:
    return WeightsError(f"{path}: {name}: expected {wanted}, got {str(value)[:60]!r}", field=name, path=path)


def _is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
