"""A table of labels, for recordings that are not in class folders: CSV with the columns file, label and split."""

import csv
import io
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ripe_mambaspike.errors import DataError, short_repr
from ripe_mambaspike.files import MAX_JSON_BYTES, read_regular

COLUMNS = ("file", "label", "split")  # the last may be missing


class LabeledFile(NamedTuple):
    """A row: the file relative to the dataset's root, its class, and its split as written; '' without that column."""

    file: str
    label: str
    split: str
    row: int  # the line of the table


def read_label_table(path: Path, files: Collection[str], splits: Collection[str]) -> list[LabeledFile]:
    """The rows, checked: every file is one of `files` and there once, no label is empty, a split is one of `splits`."""
    lines = _read_lines(path)
    head, *body = lines or [(1, [])]
    names = [cell.strip().lower() for cell in head[1]]
    if sorted(names) not in (sorted(COLUMNS), sorted(COLUMNS[:2])):
        raise DataError.expected("labels", "the columns file, label and, if any, split", short_repr(names), path=path)
    if not body:
        raise DataError.expected("labels", "at least one row", "none", path=path)
    known, found = set(files), dict[str, LabeledFile]()
    for row, cells in body:
        if len(cells) != len(names):
            raise _wrong(path, row, f"{len(names)} cells", f"{len(cells)}")
        values = {"split": "", **dict(zip(names, (cell.strip() for cell in cells), strict=True))}
        file = PurePosixPath(values["file"]).as_posix() if values["file"] else ""
        if file not in known:
            raise _wrong(path, row, "a file below the root of the dataset", short_repr(values["file"]))
        if file in found:
            raise _wrong(path, row, "every file once", f"{short_repr(file)} again, after row {found[file].row}")
        if not values["label"] or not values["label"].isprintable():
            raise _wrong(path, row, f"a label for {file}", short_repr(values["label"]))
        if "split" in names and values["split"].lower() not in splits:
            raise _wrong(path, row, f"one of the splits {', '.join(splits)}", short_repr(values["split"]))
        found[file] = LabeledFile(file, values["label"], values["split"].lower(), row)
    return list(found.values())


def _read_lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines that are not empty, with their numbers."""
    try:
        text = read_regular(path, MAX_JSON_BYTES).decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        return [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except OSError as error:
        raise DataError.expected("labels", "a readable CSV file", error, path=path) from error
    except (ValueError, csv.Error) as error:
        raise DataError.expected("labels", "CSV in UTF-8", str(error), path=path) from error


def _wrong(path: Path, row: int, expected: str, got: str) -> DataError:
    return DataError.expected("labels", f"{expected} in row {row}", got, path=path)
