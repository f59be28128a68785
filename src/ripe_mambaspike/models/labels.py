"""What a trained network's outputs mean and how its clips were made: `labels.json` beside the weights."""

import json
import logging
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ripe_mambaspike.errors import WeightsError
from ripe_mambaspike.files import MAX_JSON_BYTES, read_regular, write_file
from ripe_mambaspike.models.shipped import list_pretrained, shipped_folder
from ripe_mambaspike.schema import Document, convert

LOG = logging.getLogger("ripe_mambaspike")
LABELS_FILE = "labels.json"
FORMAT = "ripe-labels"
VERSION = 4  # 3 says `cut` for `partition`, 2 also `steps` for `time_steps`; 1 has no sensor, duration and store
BEST = "best"
LAST = "last"  # of a run: the network after the last epoch, or where it was stopped
CONFIG_FILE = "config.json"  # of `models.pretrained`
EXPORT_FILE = "export.json"  # of `deploy.export`
MAX_SENSOR_SIDE = 65536
HINT = "a file written by ripe train is needed"

Count = Annotated[int, Meta(ge=1)]
Side = Annotated[int, Meta(ge=1, le=MAX_SENSOR_SIDE)]
Offset = Annotated[int, Meta(ge=0, le=MAX_SENSOR_SIDE)]
Name = Annotated[str, Meta(min_length=1)]


class LabelData(Document, frozen=True):
    """How recordings were binned into clips."""

    set: str | None
    partition: str | None
    store: str | None
    sensor_size: tuple[Side, Side] | None
    crop: tuple[Offset, Offset, Side, Side] | None
    duration_us: Count | None
    time_steps: Count
    grid: tuple[Side, Side]
    by: Literal["time", "count"]
    binary: bool


class UnknownRule(Document, frozen=True):
    """When a network says "unknown": its score of a recording is below the threshold."""

    score: Literal["probability", "energy"]  # of `inference.unknown`
    threshold: float
    keep: Annotated[float, Meta(gt=0, le=1)]  # the share of the clips whose score is at least the threshold


class Calibration(Document, frozen=True):
    """What `ripe calibrate` did to a network, and the clips that it looked at."""

    temperature: Annotated[float, Meta(gt=0)]  # the last layer's weights were divided by it
    set: str
    split: Literal["train", "val"]
    store: str
    clips: Count
    unknown: UnknownRule | None = None


class LabelFile(Document, frozen=True):
    """`labels.json`."""

    format: Literal["ripe-labels"]
    version: Literal[4]
    classes: Annotated[tuple[Name, ...], Meta(min_length=1)]
    data: LabelData
    epoch: Annotated[int, Meta(ge=0)] | None
    protocol: Literal["validation", "paper"] | None
    calibration: Calibration | None = None  # left out of files of networks that were not calibrated


@dataclass(frozen=True)
class Labels:
    """Class names in the order of the outputs, and how recordings become clips.

    None means unknown: the network is from an earlier version, or was not trained by `ripe train`.
    """

    classes: tuple[str, ...]
    set: str | None
    partition: str | None
    time_steps: int
    grid: tuple[int, int]  # (height, width)
    by: Literal["time", "count"]
    binary: bool
    epoch: int | None = None
    protocol: Literal["validation", "paper"] | None = None
    store: str | None = None  # the key of the prepared set it was trained on
    sensor_size: tuple[int, int] | None = None  # (width, height), before the crop
    crop: tuple[int, int, int, int] | None = None  # (x, y, width, height) of the sensor that is binned; None: all of it
    duration_us: int | None = None  # the median of the training clips' durations
    calibration: Calibration | None = None  # None: the network is as it was trained

    def with_classes(self, count: int, names: tuple[str, ...] | None) -> "Labels":
        """The labels for other classes: the binning is kept, the dataset is dropped. By default names are numbers."""
        names = tuple(map(str, range(count))) if names is None else names
        return Labels(names, None, None, self.time_steps, self.grid, self.by, self.binary)

    def to_dict(self) -> dict[str, Any]:
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        data = {name: fields[name] for name in LabelData.__struct_fields__}
        rest = {name: fields[name] for name in ("epoch", "protocol")}
        if self.calibration is not None:
            rest["calibration"] = msgspec.to_builtins(self.calibration)
        return {"format": FORMAT, "version": VERSION, "classes": fields["classes"], "data": data, **rest}


def packed_labels(labels: Labels, path: Path) -> bytes:
    """The content of `labels.json`; errors name `path`."""
    document = labels.to_dict()
    parse_labels(document, path)  # never write what could not be read again
    try:
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON allows and UTF-8 does not
        return (json.dumps(document, indent=2) + "\n").encode()


def save_labels(labels: Labels, folder: str | Path) -> Path:
    """Write `labels.json` into the existing folder; returns the file's path."""
    path = Path(folder) / LABELS_FILE
    return write_file(path, packed_labels(labels, path), WeightsError, field="folder")


def read_labels(folder: str | Path) -> Labels:
    """Read the `labels.json` of a folder; a missing, unknown or wrong field raises."""
    path = Path(folder) / LABELS_FILE
    try:
        document = json.loads(read_regular(path, MAX_JSON_BYTES))  # json also reads names with lone surrogates
    except OSError as error:
        raise WeightsError.expected("labels", "a readable file", error, path=path, hint=HINT) from error
    except (ValueError, RecursionError) as error:
        raise WeightsError.expected("labels", "JSON", str(error), path=path, hint=HINT) from error
    return parse_labels(document, path)


def find_checkpoint(path: str | Path) -> Path:
    """The folder with the network: the given one, or a run's `best`, or its `last` where none was selected yet.

    A run that has not ended is used with a warning. Where there is no such folder, the name of a shipped network means
    that network.
    """
    path = Path(path)
    shipped = shipped_folder(path)
    try:
        if not path.is_dir():
            if shipped is not None:
                return shipped
            got = "another kind of file" if path.exists() else "nothing there"
            wanted = f"the folder of a run or of a saved network, or one of {', '.join(list_pretrained())}"
            raise WeightsError(f"{path}: expected {wanted}, got {got}", path=path)
        for folder in (path, path / BEST, path / LAST):
            if (folder / CONFIG_FILE).is_file():
                _warn_of_unfinished(folder)
                return folder
        begun = (path / "recipe.yaml").is_file() or (path / BEST).is_dir()
    except (OSError, ValueError) as error:  # not a valid path on this system
        reason = getattr(error, "strerror", None) or error
        raise WeightsError(f"{path}: expected the folder of a run, got {reason}", path=path) from error
    if shipped is not None and not begun:  # a folder of something else, such as recordings
        return shipped
    if begun:
        raise WeightsError(f"{path}: expected a run that has validated once, got one without {BEST}", path=path)
    got = f"a folder without {CONFIG_FILE} and {BEST}/{CONFIG_FILE}"
    if (path / EXPORT_FILE).is_file():
        got = "an export, which ripe predict takes"
    raise WeightsError(f"{path}: expected a run or a saved network, got {got}", path=path)


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
    network = f"its {folder.name} network" + ("" if epoch is None else f", after {epoch} epochs,")
    _warn_once(f"{run}: the run has not ended; {network} is used, and it has no result yet")


@lru_cache
def _warn_once(line: str) -> None:
    LOG.warning(line)


def parse_labels(document: Any, path: Path) -> Labels:
    """Check a document like that of `Labels.to_dict`; errors name `path`."""
    found = convert(_updated(document), LabelFile, origin=path, error=WeightsError, hint=HINT)
    twice = [name for name, count in Counter(found.classes).items() if count > 1]
    if twice:
        raise WeightsError.expected("classes", "names that differ", f"{twice[0][:60]!r} twice", path=path)
    data = found.data
    if data.crop is not None:
        left, top, width, height = data.crop
        across, down = data.sensor_size or (MAX_SENSOR_SIDE, MAX_SENSOR_SIDE)
        if left + width > across or top + height > down:
            raise WeightsError.expected("data.crop", f"a part of the {across}×{down} sensor", data.crop, path=path)
    fields = {name: getattr(data, name) for name in LabelData.__struct_fields__}
    return Labels(
        classes=found.classes, **fields, epoch=found.epoch, protocol=found.protocol, calibration=found.calibration
    )


def _updated(document: Any) -> Any:
    """Convert a document of an earlier version to the current one."""
    version, data = (document.get(name) if isinstance(document, dict) else None for name in ("version", "data"))
    if version not in (1, 2, 3) or isinstance(version, bool) or not isinstance(data, dict):
        return document
    renamed = {"cut": "partition"} if version == 3 else {"cut": "partition", "steps": "time_steps"}
    data = {renamed.get(name, name): value for name, value in data.items()}
    if version == 1:
        data = {"store": None, "sensor_size": None, "crop": None, "duration_us": None} | data
    return document | {"version": VERSION, "data": data}
