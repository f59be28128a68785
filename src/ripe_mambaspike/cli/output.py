"""Output of the commands: one JSON document or tables on standard output, messages on standard error."""

import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 120  # of tables that do not go to a terminal


def print_json(document: Any) -> None:
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    print()


def print_message(text: str) -> None:
    """One line on standard error."""
    print(f"ripe: {text}", file=sys.stderr, flush=True)


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print warnings about a recording on standard error, one a line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for warning in caught:
                print_message(f"warning: {warning.message}")


def printable(path: Path) -> str:
    """The path as valid text."""
    return str(path).encode("utf-8", "replace").decode()


def console() -> Console:
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=WIDTH)


def print_table(out: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Print a title and a table; the first `left` columns are left-aligned, the others right-aligned."""
    made = Table(header_style="bold")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < left else "right", no_wrap=index == 0 and left == 1)
    for row in rows:
        made.add_row(*row)
    out.print(f"[bold]{title}[/]")
    out.print(made)


def format_number(value: float | None, digits: int = 4) -> str:
    """A value with at least `digits` significant digits; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if 0 < abs(value) < 1e-3:
        return f"{value:.1e}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(0, digits - whole)}f}"
