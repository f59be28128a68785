"""The page of the command line: what `--help` prints for every command, taken from the parser itself."""

import os
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any
from unittest.mock import patch

WIDTH = 92


def commands(tree: Mapping[str, Any] | None = None, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and group, in the order of the parser: ("data",), ("data", "info"), …"""
    from ripe_mambaspike.cli.main import COMMANDS

    for name, command in (COMMANDS if tree is None else tree).items():
        yield (*before, name)
        if isinstance(command, tuple):  # a group and its description
            yield from commands(command[0], (*before, name))


def help_text(words: tuple[str, ...]) -> str:
    """What the command prints for --help."""
    from ripe_mambaspike.cli.main import main

    printed = StringIO()
    with patch.dict(os.environ, {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}), redirect_stdout(printed):
        code = main([*words, "--help"])
    if code != 0:
        raise RuntimeError(f"ripe {' '.join(words)} --help ended with {code}")
    lines = printed.getvalue().strip().splitlines()
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent=" " * indent(line)) for line in lines)


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def cli_sections() -> str:
    """One section a command, one heading below it for the commands of a group."""
    parts = [f"```text\n{help_text(())}\n```"]
    for words in commands():
        parts.append(f"{'#' * (1 + len(words))} ripe {' '.join(words)}\n\n```text\n{help_text(words)}\n```")
    return "\n\n".join(parts) + "\n"
