"""Read a run folder. Missing or damaged files become sentences in `RunData.notes`."""

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.files import MAX_JSON_BYTES, read_regular
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.pretrained import from_pretrained

RUN_FILES = ("recipe.yaml", "log.csv", "result.json", "best")

Column = list[float | None]  # one value an epoch: None where the cell is empty, nan where it holds no number


@dataclass(frozen=True)
class ClassScore:
    """The score of one class."""

    name: str
    n: int
    correct: int


@dataclass(frozen=True)
class RunData:
    """The contents of a run folder."""

    folder: Path
    recipe: str | None
    log: dict[str, Column]  # columns in the file's order
    result: dict[str, Any]
    classes: list[str]  # names, as far as they are known
    scores: list[ClassScore]
    confusion: list[list[int]]  # [true][predicted]
    model: Model | None
    notes: dict[str, str] = field(default_factory=dict)  # file → why it is missing

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
    recipe = _read_text(folder / "recipe.yaml", notes)
    log = _read_log(folder / "log.csv", notes)
    result = _read_json(folder / "result.json", notes)
    labels = _read_json(folder / "best" / "labels.json", notes)
    scores = _scores(result.get("per_class"))
    classes = _names(labels.get("classes")) or [score.name for score in scores]
    return RunData(
        folder, recipe, log, result, classes, scores, _confusion(result.get("confusion")), _model(folder, notes), notes
    )


def _read_text(path: Path, notes: dict[str, str]) -> str | None:
    try:
        return read_regular(path, MAX_JSON_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        absent = isinstance(error, FileNotFoundError)
        notes[path.name] = f"{path.name} {'is not there' if absent else f'cannot be read ({error.strerror})'}."
        return None


def _read_json(path: Path, notes: dict[str, str]) -> dict[str, Any]:
    text = _read_text(path, notes)
    if text is None:
        return {}
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        notes[path.name] = f"{path.name} cannot be read: it is damaged or no JSON."
        return {}
    if not isinstance(document, dict):
        notes[path.name] = f"{path.name} holds no JSON object."
        return {}
    return document


def _read_log(path: Path, notes: dict[str, str]) -> dict[str, Column]:
    text = _read_text(path, notes)
    if text is None:
        return {}
    try:
        rows = [row for row in csv.reader(text.replace("\0", "").splitlines()) if any(cell.strip() for cell in row)]
    except csv.Error:
        notes[path.name] = "log.csv cannot be read: it is damaged."
        return {}
    if len(rows) < 2:
        notes[path.name] = "log.csv holds no epoch yet."
        return {}
    header = [name.strip() for name in rows[0]]
    return {
        name: [_cell(row[place]) if place < len(row) else None for row in rows[1:]]
        for place, name in enumerate(header)
        if name
    }


def _cell(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return math.nan


def _names(value: Any) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list) else []


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _scores(value: Any) -> list[ClassScore]:
    """All classes, or none where one of them cannot be read."""
    scores = []
    for index, entry in enumerate(value if isinstance(value, list) else []):
        if not isinstance(entry, dict):
            return []
        n, correct = entry.get("n", -1), entry.get("correct", -1)
        if not (_is_count(n) and _is_count(correct) and correct <= n):
            return []
        scores.append(ClassScore(str(entry.get("name", f"class {index}")), n, correct))
    return scores


def _confusion(value: Any) -> list[list[int]]:
    """A square of counts, or nothing."""
    if not isinstance(value, list) or not value:
        return []
    fits = all(isinstance(row, list) and len(row) == len(value) and all(map(_is_count, row)) for row in value)
    return value if fits else []


def _model(folder: Path, notes: dict[str, str]) -> Model | None:
    if not (folder / "best").is_dir():
        notes["best"] = "The folder best, with the picked network, is not there."
        return None
    try:
        return from_pretrained(folder / "best")
    except (RipeError, OSError) as error:
        notes["best"] = f"The picked network cannot be loaded: {error}."
        return None
