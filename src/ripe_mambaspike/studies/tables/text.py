"""A table as CSV or Markdown."""

import csv
import io

from ripe_mambaspike.studies.tables.table import PaperTable, TableCell, TableRow

MARKS = {"same": "", "differs": " ≠", "": ""}
NUMBERS = ("value", "n", "mean", "sd", "low", "high", "delta", "p")


def to_csv(table: PaperTable) -> str:
    """One line for each cell: row, column, whose it is, text, whether it agrees, and its numbers."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("table", "section", "row", "column", "by", "text", "agreement", *NUMBERS))
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is not None:
                numbers = [cell.numbers.get(name, "") for name in NUMBERS]
                place = (table.number, row.section, row.name, column.name, column.by)
                writer.writerow((*place, cell.text, cell.agreement, *numbers))
    return file.getvalue()


def to_markdown(table: PaperTable) -> str:
    """The table with its notes; ≠ marks a value of ours that is not the paper's."""
    name = f"Table {table.number}" if table.number else f"Study {table.label}"
    lines = [f"### {name}. {table.title}", ""]
    lines.append("| | " + " | ".join(f"{column.name} ({column.by})" for column in table.columns) + " |")
    lines.append("|---" + "|---:" * len(table.columns) + "|")
    section = ""
    for row in table.rows:
        if row.section != section:
            section = row.section
            lines.append(f"| **{section}** |" + " |" * len(table.columns))
        lines.append("| " + " | ".join(_escaped(text) for text in (row.name, *cell_texts(row))) + " |")
    extra = [
        *table.notes,
        *(f"Ours: {text}" for text in table.sources),
        *(f"Missing: {text}" for text in table.missing),
    ]
    return "\n".join(lines + ([""] if extra else []) + [f"- {text}" for text in extra]) + "\n"


def cell_texts(row: TableRow) -> list[str]:
    return [_text(cell) for cell in row.cells]


def _text(cell: TableCell | None) -> str:
    return "" if cell is None else cell.text + MARKS[cell.agreement]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
