"""The paper's tables as printed (printed.yaml), and the per-seed accuracies of its appendix."""

from functools import cache
from importlib import resources

from msgspec import field

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.schema import Document, convert
from ripe_mambaspike.yaml_text import parse_yaml

FILE = "printed.yaml"


class PrintedTable(Document, frozen=True):
    """One table; the file explains its fields."""

    label: str
    title: str
    columns: list[str]
    rows: dict[str, list[str | None]]  # id → name and cells
    study: str | None = None
    measured: str | None = None  # on what, where the paper measured
    sections: dict[str, str] = field(default_factory=dict)  # first row of a block → its heading

    def __post_init__(self) -> None:
        for name, row in self.rows.items():
            if len(row) != 1 + len(self.columns) or row[0] is None:
                raise ConfigError.expected(f"rows.{name}", f"a name and {len(self.columns)} cells", row)
        if unknown := set(self.sections) - set(self.rows):
            raise ConfigError.expected("sections", "ids of rows", ", ".join(sorted(unknown)))

    def cell(self, row: str, column: str) -> str | None:
        return self.rows[row][1 + self.columns.index(column)]


class PrintedText(Document, frozen=True):
    """Values that the paper prints outside its tables, and the tables."""

    seeds: dict[str, list[float]]  # accuracies of single seeds, by dataset
    top5: dict[str, float]
    trained_on: dict[str, str]
    tables: dict[int, PrintedTable]


@cache
def printed_text() -> PrintedText:
    return convert(parse_yaml((resources.files(__package__) / FILE).read_text("utf-8"), FILE), PrintedText, origin=FILE)


def printed_table(number: int) -> PrintedTable:
    """Table 2 to 20; Table 1 is `models.peers.published`."""
    return printed_text().tables[number]


def printed_studies() -> set[str]:
    """The studies that answer one of these tables."""
    return {table.study for table in printed_text().tables.values() if table.study is not None}
