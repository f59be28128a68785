"""Text: one event per line, four numbers separated by blanks, commas, semicolons or tabs.

A first line may name the columns, or give the sensor's width and height; lines that start with `#` or `%` are comments.
Without names the order is guessed from the values (`t x y p` as in the rpg datasets, `x y t p`, `x y p t`). Times with
a decimal point are in seconds, integers in µs.
"""

import codecs
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from ripe_mambaspike.errors import InputError, ReadError
from ripe_mambaspike.events.columns import ColumnConverter, column_order, find_columns
from ripe_mambaspike.events.recording import Events, Recording
from ripe_mambaspike.events.registry import register_chunk_encoder, register_format, register_writer
from ripe_mambaspike.events.source import EventSource, ReadOptions

LINES_PER_READ = 1 << 16  # read at a time
MAX_LINE_CHARS = 1 << 14  # characters
MAX_EXACT_US = 1 << 53  # integers up to this are exact in float64
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
CUT_OFF = "was cut off at the end of the file"


def _recognizes(head: bytes, path: Path) -> bool:
    """Whether the text is printable and its first line without a comment holds numbers or column names."""
    text = head.removeprefix(codecs.BOM_UTF8).decode("latin-1")
    if not head or any(ord(sign) < 9 or 13 < ord(sign) < 32 or ord(sign) > 126 for sign in text[:2000]):
        return False
    for line in text.splitlines():
        cells = _cells(line)
        if cells:
            return all(map(NUMBER.fullmatch, cells)) or find_columns(cells) is not None
    return path.suffix.lower() in (".txt", ".csv", ".tsv")


@register_format("text", title="text", recognizes=_recognizes, order=1)
def open_text(path: Path, options: ReadOptions) -> EventSource:
    order, skip, size = _first_lines(path)
    return EventSource(
        "text", lambda source: _pieces(path, skip, ColumnConverter(source, options.time_unit, order)), size
    )


def _cells(line: str) -> list[str]:
    stripped = line.strip()
    return [] if stripped[:1] in "#%" else [cell for cell in re.split(r"[,;\s]+", stripped) if cell]


def _first_lines(path: Path) -> tuple[list[str] | None, int, tuple[int, int] | None]:
    """Column names (if a line has them), the number of lines before the events, and the sensor's size."""
    size = None
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(itertools.islice(_lines(file), 1000)):
                cells = _cells(line)
                if not cells:
                    continue
                if len(cells) == 2 and all(re.fullmatch(r"\d{1,5}", cell) and int(cell) for cell in cells):
                    size = (int(cells[0]), int(cells[1]))
                    continue
                if (named := find_columns(cells)) is not None:
                    # A table may have more columns; one without a name, as of row numbers, has an empty cell.
                    every = re.split(r"[,;]", line.strip()) if re.search(r"[,;]", line) else cells
                    back = {theirs: ours for ours, theirs in named.items()}
                    order = [back.get(cell.strip(), "") for cell in every]
                    if not set(named) <= set(order):
                        raise ReadError.expected(
                            f"line {number + 1}", "a name between every two separators", repr(line.strip()[:60])
                        )
                    return order, number + 1, size
                return None, number, size
    except UnicodeDecodeError as error:
        raise ReadError.expected("text", "UTF-8", f"byte {error.object[error.start]} at {error.start}") from error
    return None, 0, size


def _pieces(path: Path, skip: int, columns: ColumnConverter) -> Iterator[Events]:
    at = 0
    width = len(columns.order or "xytp")
    line_number = skip
    with path.open(encoding="utf-8-sig") as file:
        lines = itertools.islice(_lines(file), skip, None)
        while True:
            try:
                batch = list(itertools.islice(lines, LINES_PER_READ))
            except UnicodeDecodeError as error:
                raise ReadError.expected("text", f"UTF-8 after line {line_number}", error.reason) from error
            if not batch:
                break
            if not batch[-1].endswith("\n") and len(_cells(batch[-1])) not in (0, width):
                columns.source.leave_out(1, CUT_OFF)
                batch.pop()
            table = _table(batch, line_number, width)
            line_number += len(batch)
            if not len(table):
                continue
            columns.order = columns.order or column_order(table)
            times = (cells[columns.order.index("t")] for cells in map(_cells, batch) if cells)
            if columns.time_unit is None and not any(set(".eE") & set(cell) for cell in times):
                columns.time_unit = "us"
            yield columns.convert_rows(table, at)
            at += len(table)


def _lines(file: IO[str]) -> Iterator[str]:
    """Iterate over lines, with a limit on their length."""
    while line := file.readline(MAX_LINE_CHARS):
        if len(line) == MAX_LINE_CHARS and not line.endswith("\n"):
            raise ReadError.expected("line", f"at most {MAX_LINE_CHARS} characters", f"'{line[:60]}…'")
        yield line


def _table(lines: list[str], before: int, width: int) -> np.ndarray:
    """Lines → numbers [n, width]."""
    text = "".join(lines)
    if "#" in text or "%" in text:
        text = "".join(line for line in lines if line.lstrip()[:1] not in ("#", "%"))
    rows = text.replace(",", " ").replace(";", " ").split("\n")
    if not any(map(str.strip, rows)):
        return np.empty((0, width))
    try:
        table = np.loadtxt(rows, comments=None, ndmin=2)
        if table.shape[1] != width:
            raise ValueError
    except ValueError:
        for number, line in enumerate(lines, before + 1):
            cells = _cells(line)
            if cells and (len(cells) != width or not all(map(_is_number, cells))):
                raise ReadError.expected(f"line {number}", f"{width} numbers", repr(line.strip()[:60])) from None
        raise ReadError.expected(f"line {before + 1}", f"{width} numbers near it", "something else") from None
    return table


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@register_writer(".csv", ".txt")
def encode_text(recording: Recording) -> Iterator[bytes]:
    """A csv with column names; times in integer µs."""
    encoder = TextEncoder(recording.sensor_size, recording.first_us)
    for start in range(0, len(recording), LINES_PER_READ):
        yield encoder.encode(recording.events[start : start + LINES_PER_READ])


@register_chunk_encoder(".csv", ".txt")
class TextEncoder:
    """Lines of text."""

    def __init__(self, sensor_size: tuple[int, int], first_us: int) -> None:
        width, height = sensor_size
        self._header = f"{width} {height}\nx,y,t,p\n"

    def encode(self, events: Events) -> bytes:
        if len(events) and np.abs(events["t"]).max() > MAX_EXACT_US:
            raise InputError.expected("t", "times up to 2⁵³ µs for text", f"{events['t'].max()} µs")
        rows = zip(*(events[name].tolist() for name in "xytp"), strict=True)
        header, self._header = self._header, ""
        return (header + "".join(f"{x},{y},{t},{p}\n" for x, y, t, p in rows)).encode()

    def new_header(self) -> bytes | None:
        return None
