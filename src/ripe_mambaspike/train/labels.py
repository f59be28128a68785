"""What a trained network's outputs mean and how its clips were made: `labels.json` beside the weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ripe_mambaspike.errors import WeightsError
from ripe_mambaspike.files import atomic_write

LABELS_FILE = "labels.json"
FORMAT = "ripe-labels"
VERSION = 1
BEST = "best"
CONFIG_FILE = "config.json"  # as in models.pretrained, which needs torch
MEMBERS = {"format", "version", "classes", "data", "epoch", "protocol"}
DATA_MEMBERS = {"set", "cut", "steps", "grid", "by", "binary"}
WANTED = "the file written by ripe train is wanted"


@dataclass(frozen=True)
class Labels:
    """Names of the classes in the order of the outputs, the binning of the clips, and which epoch this was."""

    classes: tuple[str, ...]
    set: str
    cut: str | None
    steps: int
    grid: tuple[int, int]  # (height, width)
    by: Literal["time", "count"]
    binary: bool
    epoch: int
    protocol: Literal["validation", "paper"]

    def to_dict(self) -> dict[str, Any]:
        data = {
            "set": self.set,
            "cut": self.cut,
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


def save_labels(labels: Labels, folder: str | Path) -> Path:
    """Write `labels.json` into the folder, which is there; the file's path."""
    path = Path(folder) / LABELS_FILE
    document = labels.to_dict()
    _parse(document, path)  # what could not be read again is not written
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        with atomic_write(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise WeightsError(f"{path} cannot be written ({error.strerror or error}); a folder is wanted") from error
    return path


def read_labels(folder: str | Path) -> Labels:
    """The `labels.json` of a folder; anything missing, unknown or of another kind is refused."""
    path = Path(folder) / LABELS_FILE
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error}); {WANTED}") from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON ({error}); {WANTED}") from error
    return _parse(document, path)


def find_checkpoint(path: str | Path) -> Path:
    """The folder with the network: the given one, or the `best` of a run's."""
    path = Path(path)
    try:
        if not path.is_dir():
            given = "is no folder" if path.exists() else "is not there"
            raise WeightsError(f"{path} {given}; the folder of a run or of a saved network is wanted")
        if (path / CONFIG_FILE).is_file():
            return path
        if (path / BEST / CONFIG_FILE).is_file():
            return path / BEST
        begun = (path / "recipe.yaml").is_file() or (path / BEST).is_dir()
    except (OSError, ValueError) as error:  # a name the system cannot even look up
        reason = getattr(error, "strerror", None) or error
        raise WeightsError(f"{path} cannot be looked up ({reason}); the folder of a run is wanted") from error
    if begun:
        raise WeightsError(f"{path} is a run without a network in {BEST} yet; one that has validated once is wanted")
    raise WeightsError(f"{path} holds neither {CONFIG_FILE} nor {BEST}/{CONFIG_FILE}; a run or a network is wanted")


def _parse(document: Any, path: Path) -> Labels:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise WeightsError(f"{path} is not a {FORMAT} file; {WANTED}")
    if document.get("version") != VERSION or isinstance(document["version"], bool):
        raise WeightsError(f"{path} has version {document.get('version')!r}; this package reads version {VERSION}")
    _check_members(document, MEMBERS, "", path)
    data = document["data"]
    if not isinstance(data, dict):
        raise _wrong(path, "data", data, "an object")
    _check_members(data, DATA_MEMBERS, "data.", path)
    classes, grid = document["classes"], data["grid"]
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) and name for name in classes):
        raise _wrong(path, "classes", classes, "a list of names")
    if twice := next((name for index, name in enumerate(classes) if name in classes[:index]), None):
        raise WeightsError(f"{path} has the class {twice!r} twice; names that differ are wanted")
    if not isinstance(grid, list) or len(grid) != 2 or not all(_is_count(side) for side in grid):
        raise _wrong(path, "data.grid", grid, "a height and a width of at least 1")
    if not isinstance(data["set"], str):
        raise _wrong(path, "data.set", data["set"], "the name of a set")
    if data["cut"] is not None and not isinstance(data["cut"], str):
        raise _wrong(path, "data.cut", data["cut"], "the name of a cut, or null,")
    if not _is_count(data["steps"]):
        raise _wrong(path, "data.steps", data["steps"], "a whole number of at least 1")
    if data["by"] not in ("time", "count"):
        raise _wrong(path, "data.by", data["by"], "time or count")
    if not isinstance(data["binary"], bool):
        raise _wrong(path, "data.binary", data["binary"], "true or false")
    epoch = document["epoch"]
    if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
        raise _wrong(path, "epoch", epoch, "a whole number of at least 0")
    if document["protocol"] not in ("validation", "paper"):
        raise _wrong(path, "protocol", document["protocol"], "validation or paper")
    return Labels(
        classes=tuple(classes),
        set=data["set"],
        cut=data["cut"],
        steps=data["steps"],
        grid=(grid[0], grid[1]),
        by=data["by"],
        binary=data["binary"],
        epoch=epoch,
        protocol=document["protocol"],
    )


def _check_members(document: dict[str, Any], wanted: set[str], prefix: str, path: Path) -> None:
    if missing := sorted(wanted - document.keys()):
        raise WeightsError(f"{path} lacks '{prefix}{missing[0]}'; {WANTED}")
    if unknown := sorted(document.keys() - wanted):
        raise WeightsError(f"{path} has the unknown '{prefix}{unknown[0]}'; {', '.join(sorted(wanted))} are wanted")


def _wrong(path: Path, name: str, value: Any, wanted: str) -> WeightsError:
    return WeightsError(f"{path} has {name} {str(value)[:60]!r}; {wanted} is wanted")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
