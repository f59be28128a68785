"""`ripe table`: a table of the paper with ours beside it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ripe_mambaspike.cli.output import console, print_json
from ripe_mambaspike.command_options import Flag, Folder, Json, option
from ripe_mambaspike.errors import ConfigError

if TYPE_CHECKING:
    from ripe_mambaspike.studies.tables.table import PaperTable

COLORS = {"same": "green", "differs": "yellow"}
MAX_PAIRS = 8  # columns beyond which a printed value and ours share one cell


@dataclass
class TableCommand:
    """Print a table of the paper (1 to 20) with ours beside it; without a number, list them all.

    Parameters and operations are counted now. Times and memory come from stored benchmarks (ripe bench paper),
    accuracies from stored studies (ripe study); what was not run is named, with the command that runs it.

    JSON keys: table, label, title, columns (name, by), rows (name, section, cells: text, agreement, numbers), notes,
    sources, missing.
    """

    number: Annotated[int | None, tyro.conf.Positional, option("N")] = None
    """The table's number, 1 to 20."""
    results: Folder = None
    """Folder of stored results. Default: benchmarks/results of the checkout."""
    run_folder: Annotated[Path | None, tyro.conf.arg(name="run"), option("RUN")] = None
    """For Table 15: the folder of a run."""
    csv: Flag = False
    """Print one line of CSV for each cell."""
    markdown: Flag = False
    """Print the table in Markdown."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import paper_table
        from ripe_mambaspike.studies.tables.make import NUMBERS
        from ripe_mambaspike.studies.tables.text import to_csv, to_markdown

        if self.csv + self.markdown + self.json > 1:
            raise ConfigError.expected("--json", "one of --csv, --markdown and --json", "several")
        if self.number is None:
            made = [paper_table(number, results=self.results) for number in NUMBERS]
            if self.json:
                print_json([table.to_dict() for table in made])
            elif self.csv or self.markdown:
                print("\n".join((to_csv if self.csv else to_markdown)(table) for table in made), end="")
            else:
                _list(made)
            return 0
        table = paper_table(self.number, results=self.results, run=self.run_folder)
        if self.json:
            print_json(table.to_dict())
        elif self.csv or self.markdown:
            print((to_csv if self.csv else to_markdown)(table), end="")
        else:
            show_table(table)
        return 0


def _list(tables: "list[PaperTable]") -> None:
    from rich.table import Table

    made = Table(header_style="bold")
    for column in ("table", "title", "agree", "differ", "missing"):
        made.add_column(column, justify="right" if column in ("table", "agree", "differ") else "left")
    for table in tables:
        same, differs = table.count("same"), table.count("differs")
        made.add_row(str(table.number), table.title, str(same), str(differs), "; ".join(table.missing))
    console().print(made)


def show_table(table: "PaperTable") -> None:
    """On the terminal: ours in green where it rounds to the printed value, in yellow where it does not."""
    from rich.markup import escape
    from rich.table import Table

    out = console()
    made = Table(header_style="bold")
    made.add_column("")
    merged = _is_paired(table) and len(table.columns) > MAX_PAIRS
    places = range(0, len(table.columns), 2) if merged else range(len(table.columns))
    for place in places:
        column = table.columns[place]
        made.add_column(escape(column.name if merged else f"{column.name}\n{column.by}"), justify="right")
    section = ""
    for row in table.rows:
        if row.section != section:
            section = row.section
            made.add_section()
            made.add_row(f"[italic]{escape(section)}")
        texts = []
        for place in places:
            cell, by = row.cells[place], table.columns[place].by
            text = "" if cell is None else escape(cell.text)
            if merged:
                ours = row.cells[place + 1]
                more = "" if ours is None or ours.agreement == "same" else f"ours {escape(ours.text)}"
                texts.append(f"{text} [yellow]{more}" if more else text)
            else:
                color = COLORS.get(cell.agreement) if cell is not None else None
                mark = " ≠" if cell is not None and cell.agreement == "differs" else ""
                texts.append(f"[{color}]{text}{mark}" if color else f"[dim]{text}" if by == "paper" else text)
        made.add_row(escape(row.name), *texts)
    out.print(f"[bold]Table {table.number}. {escape(table.title)}[/]")
    out.print(made)
    same, differs = table.count("same"), table.count("differs")
    if same + differs:
        out.print(f"Of {same + differs} values that can be compared, {same} agree as printed and {differs} differ.")
    if merged:
        out.print("Printed values; ours stand beside them only where they differ.")
    for label, texts in (("·", table.notes), ("ours:", table.sources), ("missing:", table.missing)):
        for text in texts:
            out.print(f"{label} {text}", markup=False)


def _is_paired(table: "PaperTable") -> bool:
    """Whether every printed column is followed by ours of the same name."""
    pairs = zip(table.columns[::2], table.columns[1::2], strict=False)
    return len(table.columns) % 2 == 0 and all(
        one.name == two.name and (one.by, two.by) == ("paper", "ours") for one, two in pairs
    )
