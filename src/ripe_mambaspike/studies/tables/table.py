"""A table of the paper with ours beside it: plain data, and how a printed value is compared with a computed one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ripe_mambaspike.studies.claims.verdict import rounds_to, with_more_digits
from ripe_mambaspike.studies.tables.printed import PrintedTable

Agreement = Literal["same", "differs", ""]  # empty where the two are not the same quantity


@dataclass(frozen=True)
class TableColumn:
    name: str
    by: Literal["paper", "ours"]


@dataclass(frozen=True)
class TableCell:
    text: str
    agreement: Agreement = ""
    numbers: Mapping[str, float] = field(default_factory=dict)  # value; or n, mean, sd, low, high, p


@dataclass(frozen=True)
class TableRow:
    name: str
    cells: tuple[TableCell | None, ...]  # one a column
    section: str = ""  # the heading of its block


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper, its columns and ours."""

    number: int
    label: str  # tab:LABEL of the LaTeX source
    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # where our values come from: computed now, or what was run, on what, when
    missing: tuple[str, ...] = ()  # what has not been run, and the command that runs it

    def count(self, agreement: Agreement) -> int:
        """How many of our cells agree or differ."""
        return sum(cell is not None and cell.agreement == agreement for row in self.rows for cell in row.cells)

    def to_dict(self) -> dict[str, Any]:
        columns = [{"name": column.name, "by": column.by} for column in self.columns]
        rows = [
            {"name": row.name, "section": row.section, "cells": [None if c is None else _cell(c) for c in row.cells]}
            for row in self.rows
        ]
        return {
            "table": self.number,
            "label": self.label,
            "title": self.title,
            "columns": columns,
            "rows": rows,
            "notes": list(self.notes),
            "sources": list(self.sources),
            "missing": list(self.missing),
        }


def _cell(cell: TableCell) -> dict[str, Any]:
    return {"text": cell.text, "agreement": cell.agreement or None, "numbers": dict(cell.numbers)}


NOT_IN_PAPER = "Not in the paper"
Ours = float | int | str | bool | TableCell | None


def compare(ours: Ours, paper: str | None) -> TableCell | None:
    """Our value with the digits of the printed one and two more; numbers agree if ours rounds to the printed one."""
    if ours is None or isinstance(ours, TableCell):
        return ours
    if isinstance(ours, bool):
        ours = "yes" if ours else "no"
    if isinstance(ours, str):
        return TableCell(ours, "" if paper is None else "same" if ours == paper else "differs")
    if paper is None:
        return TableCell(plain_number(ours), numbers={"value": ours})
    exact = isinstance(ours, int) and "." not in paper
    text = f"{ours:,}" if exact else with_more_digits(ours, paper)
    return TableCell(text, "same" if rounds_to(ours, paper) else "differs", {"value": ours})


def plain_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def beside(
    number: int,
    printed: PrintedTable,
    ours: Mapping[str, Mapping[str, Ours]],
    *,
    more: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
    sources: Iterable[str] = (),
    missing: Iterable[str] = (),
) -> PaperTable:
    """A printed table with our value behind each column that has one.

    ours: row → column → value; a number is compared with the printed one, a cell is taken as it is
    more: columns of ours that the paper does not have
    extra: id → name of rows of ours that the paper does not have
    """
    columns: list[TableColumn] = []
    for name in (*printed.columns, *more):
        if name in printed.columns:
            columns.append(TableColumn(name, "paper"))
        if any(values.get(name) is not None for values in ours.values()):
            columns.append(TableColumn(name, "ours"))
    rows, section = [], ""
    names = {key: str(row[0]) for key, row in printed.rows.items()} | dict(extra or {})
    for key, name in names.items():
        section = printed.sections.get(key, section) if key in printed.rows else NOT_IN_PAPER
        cells: list[TableCell | None] = []
        for column in columns:
            known = key in printed.rows and column.name in printed.columns
            paper = printed.cell(key, column.name) if known else None
            if column.by == "paper":
                cells.append(None if paper is None else TableCell(paper))
            else:
                cells.append(compare(ours.get(key, {}).get(column.name), paper))
        rows.append(TableRow(name, tuple(cells), section))
    texts = (tuple(notes), tuple(sources), tuple(missing))
    return PaperTable(number, printed.label, printed.title, tuple(columns), tuple(rows), *texts)
