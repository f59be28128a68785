"""The command `ripe`: one door to every room. Torch is imported by the command that needs it, not before."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from ripe_mambaspike.cli.account import Account
from ripe_mambaspike.cli.check import Check
from ripe_mambaspike.cli.models import Models
from ripe_mambaspike.errors import RipeError

Command = (
    Annotated[Account, tyro.conf.subcommand("account")]
    | Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[Models, tyro.conf.subcommand("models")]
)
DESCRIPTION = "RIPE-MambaSpike: a compact classifier for event cameras."
WANTED = {"INT": "a whole number", "FLOAT": "a number", "STR": "a text", "PATH": "a path"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it went well, 2 when it was given something it cannot use."""
    try:
        command = _parse(sys.argv[1:] if arguments is None else arguments)
        if isinstance(command, int):
            return command
        return command.run()
    except RipeError as error:
        print(f"ripe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the output has left; say nothing more, also not when the interpreter shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parse(arguments: Sequence[str]) -> Account | Check | Models | int:
    """The command asked for, or an exit code when help was wanted or the words make none."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                Command,
                prog="ripe",
                description=DESCRIPTION,
                args=list(arguments),
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            return 0
        print(f"ripe: {_sentence(said.getvalue())}", file=sys.stderr)
        return 2


def _sentence(box: str) -> str:
    """The parser draws a box around several lines; a user wants the first thing it says."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    said = []
    for line in lines[1:]:
        if not line or line.startswith("──") or set(line) <= {"─"}:
            break
        said.append(line)
    text = " ".join(said)
    if match := re.search(r"Error parsing (\S+): no type matching (\S+) could be instantiated from \['(.*?)'\]", text):
        option, kind, value = match.groups()
        return f"{option} is '{value}'; {WANTED.get(kind.split('|')[-1], kind)} is wanted"
    return (text[:1].lower() + text[1:]).rstrip(".") + " (see ripe --help)"
