"""Read a run folder. Missing or damaged files become sentences in `RunData.notes`."""

import csv
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.files import MAX_JSON_BYTES, read_regular
from ripe_mambaspike.models.accuracy import ClassAccuracy
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.pretrained import from_pretrained

T = TypeVar("T")
RUN_FILES = ("recipe.yaml", "log.csv", "result.json", "best")

Column = list[float | None]  # one value an epoch: None where the cell is empty, nan where it holds no number


@dataclass(frozen=True)
class RunData:
    """The contents of a run folder."""

    folder: Path
    recipe: str | None
    log: dict[str, Column]  # columns in the file's order
    result: dict[str, Any]
    classes: list[str]  # names, as far as they are known
    scores: list[ClassAccuracy]
    confusion: list[list[int]]  # [true][predicted]
    model: Model | None
    notes: dict[str, str] = field(default_factory=dict)  # file → why it is missing
    selected_on_test: bool = False  # the best test epoch is selected (paper protocol)

    @property
    def epochs(self) -> int:
        return max((len(column) for column in self.log.values()), default=0)

    def column(self, name: str) -> Column | None:
        """A column with at least one number in it, finite or not."""
        column = self.log.get(name)
        return column if column and any(value is not None for value in column) else None

    def numbered(self, prefix: str) -> list[tuple[int, Column]]:
        """Columns prefix_1, prefix_2, …, in order."""
        found = []
        for name in self.log:
            number = name.removeprefix(f"{prefix}_")
            if number != name and number.isdecimal() and len(number) < 4 and (column := self.column(name)):
                found.append((int(number), column))
        return sorted(found, key=lambda pair: pair[0])

    def name_of(self, index: int) -> str:
        return self.classes[index] if 0 <= index < len(self.classes) else f"class {index}"


def read_run(folder: Path) -> RunData:
    """Read the run in a folder; raises if the folder has none of a run's files."""
    folder = Path(folder)
    if not any((folder / piece).exists() for piece in RUN_FILES):
        raise InputError(f"{folder}: expected a run folder with {', '.join(RUN_FILES)}, got none of them", path=folder)
    notes: dict[str, str] = {}
    recipe: str | None = _read(folder / "recipe.yaml", str, None, notes)
    log: dict[str, Column] = _read(folder / "log.csv", _parse_log, {}, notes)
    result: dict[str, Any] = _read(folder / "result.json", _parse_object, {}, notes)
    labels = _read(folder / "best" / "labels.json", _parse_object, {}, notes)
    scores = _converted(result.get("per_class"), list[ClassAccuracy])
    scores = scores if all(score.correct <= score.n for score in scores) else []
    confusion = _converted(result.get("confusion"), list[list[Annotated[int, msgspec.Meta(ge=0)]]])
    confusion = confusion if all(len(row) == len(confusion) for row in confusion) else []
    names = labels.get("classes")
    classes = [str(name) for name in names] if isinstance(names, list) else [score.name for score in scores]
    model = _model(folder, notes)
    on_test = is_best_test_epoch(result or {"protocol": labels.get("protocol")})  # a run that has not ended has labels
    return RunData(folder, recipe, log, result, classes, scores, confusion, model, notes, on_test)


def is_best_test_epoch(result: dict[str, Any]) -> bool:
    """Whether a result is that of a network which test clips selected."""
    protocol, on = result.get("protocol"), result.get("picked_on")
    return on == "test" or (protocol == "paper" and on != "last epoch")


def _read(path: Path, parse: Callable[[str], Any], missing: Any, notes: dict[str, str]) -> Any:
    """The parsed text of a file; `missing`, and a note, where it cannot be read."""
    try:
        return parse(read_regular(path, MAX_JSON_BYTES).decode("utf-8", errors="replace"))
    except FileNotFoundError:
        problem = "is not there"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except (ValueError, RecursionError, csv.Error):
        problem = "cannot be read: it is damaged"
    except _EmptyFileError as error:
        problem = str(error)
    notes[path.name] = f"{path.name} {problem}."
    return missing


class _EmptyFileError(Exception):
    """A file without the content that is needed."""


def _parse_object(text: str) -> dict[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise _EmptyFileError("holds no JSON object")
    return document


def _parse_log(text: str) -> dict[str, Column]:
    rows = [row for row in csv.reader(text.replace("\0", "").splitlines()) if any(cell.strip() for cell in row)]
    if len(rows) < 2:
        raise _EmptyFileError("holds no epoch yet")
    header = [name.strip() for name in rows[0]]
    return {
        name: [_cell(row[index]) if index < len(row) else None for row in rows[1:]]
        for index, name in enumerate(header)
        if name
    }


def _cell(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return math.nan


def _converted(value: Any, kind: type[list[T]]) -> list[T]:
    """The value as a list of this kind; empty where it is something else."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return []


def _model(folder: Path, notes: dict[str, str]) -> Model | None:
    if not (folder / "best").is_dir():
        notes["best"] = "The folder best, with the selected network, is not there."
        return None
    try:
        return from_pretrained(folder / "best")
    except (RipeError, OSError) as error:
        notes["best"] = f"The selected network cannot be loaded: {error}."
        return None
