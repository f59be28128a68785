"""`ripe table`: a table of the paper with ours beside it."""

from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from ripe_mambaspike.cli.output import console, print_json
from ripe_mambaspike.command_options import Flag, Json, Results, option
from ripe_mambaspike.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from ripe_mambaspike.studies.tables.table import PaperTable

COLORS = {"same": "green", "differs": "yellow"}
MAX_NAME = 40  # characters of a row's name, beyond which it takes several lines
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
    results: Results = field(default_factory=list)
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
            made = [paper_table(number, results=self.results or None) for number in NUMBERS]
            if self.json:
                print_json([table.to_dict() for table in made])
            elif self.csv or self.markdown:
                print("\n".join((to_csv if self.csv else to_markdown)(table) for table in made), end="")
            else:
                _list(made)
            return 0
        table = paper_table(self.number, results=self.results or None, run=self.run_folder)
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
    """On the terminal: ours in green where it rounds to the printed value, in yellow and with ≠ where it does not.

    Columns that do not fit beside each other follow below, with the names of the rows again.
    """
    from rich.markup import escape

    out = console()
    out.print(f"[bold]Table {table.number}. {escape(table.title)}[/]")
    columns = _merged(table) if _is_paired(table) and len(table.columns) > MAX_PAIRS else _separate(table)
    names = min(MAX_NAME, max(len(line) for row in table.rows for line in (row.name, *row.section.split())))
    room = out.width - names - 4
    for number, block in enumerate(_blocks(columns, room)):
        out.print(_block(table, block, names, room, every_row=number == 0))
    same, differs = table.count("same"), table.count("differs")
    if same + differs:
        out.print(f"Of {same + differs} values that can be compared, {same} agree as printed and {differs} differ.")
    for label, texts in (("·", table.notes), ("ours:", table.sources), ("missing:", table.missing)):
        for text in texts:
            out.print(f"{label} {text}", markup=False)


class ShownColumn(NamedTuple):
    head: str
    texts: list[str]
    styles: list[str]

    @property
    def width(self) -> int:
        """That the column needs: whole cells, and whole words of its head."""
        return max(map(len, (*self.texts, *self.head.split()))) + 3


def _separate(table: "PaperTable") -> list[ShownColumn]:
    """One shown column for each column."""
    from ripe_mambaspike.studies.tables.text import cell_texts

    found = []
    for place, column in enumerate(table.columns):
        cells = [row.cells[place] for row in table.rows]
        usual = "dim" if column.by == "paper" else ""
        styles = [usual if cell is None else COLORS.get(cell.agreement, usual) for cell in cells]
        texts = [cell_texts(row)[place] for row in table.rows]
        found.append(ShownColumn(f"{column.name}\n{column.by}", texts, styles))
    return found


def _merged(table: "PaperTable") -> list[ShownColumn]:
    """One shown column for each printed one and ours, which stands beside it only where it differs."""
    found = []
    for printed, ours in zip(_separate(table)[::2], _separate(table)[1::2], strict=True):
        texts, styles = [], []
        for paper, own, style in zip(printed.texts, ours.texts, ours.styles, strict=True):
            differs = style == COLORS["differs"]
            texts.append(f"{paper}, ours {own}" if differs else paper)
            styles.append(style if differs else "")
        found.append(ShownColumn(printed.head.removesuffix("\npaper"), texts, styles))
    return found


def _blocks(columns: list[ShownColumn], width: int) -> list[list[ShownColumn]]:
    """The columns in order, as many beside each other as fit; a printed column and ours of its name stay together."""
    blocks: list[list[ShownColumn]] = [[]]
    for _, group in groupby(columns, lambda column: column.head.partition("\n")[0]):
        pair = list(group)
        if blocks[-1] and sum(one.width for one in (*blocks[-1], *pair)) > width:
            blocks.append([])
        blocks[-1] += pair
    return blocks


def _widths(columns: list[ShownColumn], room: int) -> list[int]:
    """Of the columns: what they need, and what is left of the room for heads in fewer lines."""
    spare, widths = room - sum(column.width for column in columns), []
    for column in columns:
        wide = max(map(len, (*column.texts, *column.head.split("\n"))))
        more = max(0, min(spare, wide + 3 - column.width))
        spare -= more
        widths.append(column.width - 3 + more)
    return widths


def _block(table: "PaperTable", columns: list[ShownColumn], names: int, room: int, every_row: bool) -> "Table":
    """Rows without a value in these columns are left out, unless every row is asked for."""
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    made = Table(header_style="bold")
    made.add_column("", width=names)
    for column, width in zip(columns, _widths(columns, room), strict=True):
        made.add_column(escape(column.head), justify="right", width=width)
    section = ""
    for index, row in enumerate(table.rows):
        if not every_row and not any(column.texts[index] for column in columns):
            continue
        if row.section != section:
            section = row.section
            made.add_section()
            made.add_row(Text(section, style="italic"))
        made.add_row(Text(row.name), *(Text(column.texts[index], style=column.styles[index]) for column in columns))
    return made


def _is_paired(table: "PaperTable") -> bool:
    """Whether every printed column is followed by ours of the same name."""
    pairs = zip(table.columns[::2], table.columns[1::2], strict=False)
    return len(table.columns) % 2 == 0 and all(
        one.name == two.name and (one.by, two.by) == ("paper", "ours") for one, two in pairs
    )
