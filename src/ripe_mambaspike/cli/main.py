"""The command `ripe`: one door to every room. Torch is imported by the command that needs it, not before."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from ripe_mambaspike import __version__
from ripe_mambaspike.cli.account import AccountCommand
from ripe_mambaspike.cli.bench import COMMANDS as BENCH_COMMANDS
from ripe_mambaspike.cli.bench import BenchCommand
from ripe_mambaspike.cli.check import CheckCommand
from ripe_mambaspike.cli.data import COMMANDS as DATA_COMMANDS
from ripe_mambaspike.cli.data import DataCommand
from ripe_mambaspike.cli.evaluate import EvalCommand
from ripe_mambaspike.cli.export import ExportCommand
from ripe_mambaspike.cli.fuse import FuseCommand
from ripe_mambaspike.cli.models import ModelsCommand
from ripe_mambaspike.cli.openmp import limit_openmp_spin
from ripe_mambaspike.cli.predict import PredictCommand
from ripe_mambaspike.cli.recipes import RecipesCommand, show_fields
from ripe_mambaspike.cli.seeds import SeedsCommand
from ripe_mambaspike.cli.serve import ServeCommand
from ripe_mambaspike.cli.sim import COMMANDS as SIM_COMMANDS
from ripe_mambaspike.cli.sim import SimCommand
from ripe_mambaspike.cli.stream import StreamCommand
from ripe_mambaspike.cli.train import TrainCommand, gather_settings
from ripe_mambaspike.errors import RipeError

Command = (
    Annotated[AccountCommand, tyro.conf.subcommand("account")]
    | Annotated[BenchCommand, tyro.conf.subcommand("bench")]
    | Annotated[CheckCommand, tyro.conf.subcommand("check")]
    | Annotated[DataCommand, tyro.conf.subcommand("data")]
    | Annotated[EvalCommand, tyro.conf.subcommand("eval")]
    | Annotated[ExportCommand, tyro.conf.subcommand("export")]
    | Annotated[FuseCommand, tyro.conf.subcommand("fuse")]
    | Annotated[ModelsCommand, tyro.conf.subcommand("models")]
    | Annotated[PredictCommand, tyro.conf.subcommand("predict")]
    | Annotated[RecipesCommand, tyro.conf.subcommand("recipes")]
    | Annotated[SeedsCommand, tyro.conf.subcommand("seeds")]
    | Annotated[ServeCommand, tyro.conf.subcommand("serve")]
    | Annotated[SimCommand, tyro.conf.subcommand("sim")]
    | Annotated[StreamCommand, tyro.conf.subcommand("stream")]
    | Annotated[TrainCommand, tyro.conf.subcommand("train")]
)
Asked = (
    AccountCommand | BenchCommand | CheckCommand | DataCommand | EvalCommand | ExportCommand | FuseCommand
    | ModelsCommand | PredictCommand | RecipesCommand | SeedsCommand | ServeCommand | SimCommand | StreamCommand
    | TrainCommand
)  # fmt: skip
COMMANDS = (
    "account", "bench", "check", "data", "eval", "export", "fuse", "models", "predict", "recipes", "seeds", "serve",
    "sim", "stream", "train",
)  # fmt: skip
SETTABLE = ("seeds", "train")  # commands whose help lists the fields of a recipe
NESTED = {"bench": tuple(BENCH_COMMANDS), "data": tuple(DATA_COMMANDS), "sim": tuple(SIM_COMMANDS)}
DESCRIPTION = "RIPE-MambaSpike: a compact classifier for event cameras. ripe --version prints the version."
WANTED = {
    "INT INT": "a pair of whole numbers",
    "INT": "a whole number",
    "FLOAT": "a number",
    "STR": "a text",
    "PATH": "a path",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it went well, 2 when it was given something it cannot use."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        print(f"ripe {__version__}")
        return 0
    try:
        command = _parse(words)
        if isinstance(command, int):
            return command
        limit_openmp_spin()
        if not isinstance(command, DataCommand):  # which does without torch
            from ripe_mambaspike.ops.memory import keep_freed_memory

            keep_freed_memory()
        return command.run()
    except RipeError as error:
        return _refuse(str(error))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return _refuse("there is not enough memory for this; a smaller resolution or fewer steps are wanted")
        raise
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the output has left; say nothing more, also not when the interpreter shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _refuse(sentence: str) -> int:
    print(f"ripe: {sentence}", file=sys.stderr)
    return 2


def _parse(words: list[str]) -> Asked | int:
    """The command asked for, or an exit code when help was wanted or the words make none."""
    if not words or not (words[0] in COMMANDS or words[0].startswith("-")):
        given = f"there is no command '{words[0]}'" if words else "no command was given"
        return _refuse(f"{given}; one of {', '.join(COMMANDS)} is wanted")
    nested = NESTED.get(words[0])
    if nested and not (words[1:] and (words[1] in nested or words[1].startswith("-"))):
        given = f"there is no command '{words[0]} {words[1]}'" if words[1:] else f"ripe {words[0]} was given no command"
        return _refuse(f"{given}; one of {', '.join(nested)} is wanted")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                Command,
                prog="ripe",
                description=DESCRIPTION,
                args=gather_settings(words),
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            if words[0] in SETTABLE:
                show_fields()
            return 0
        return _refuse(_sentence(said.getvalue()))


def _sentence(box: str) -> str:
    """The parser draws a box around several lines; a user wants the first thing it says."""
    said = []
    for line in [line.strip("│╭╮╰╯ ") for line in box.splitlines()][1:]:
        if not line or set(line) <= {"─"}:
            break
        said.append(line)
    text = " ".join(said)
    if match := re.search(r"Error parsing (\S+): no type matching (.+) could be instantiated from \[(.*?)\]", text):
        option, kind, values = match.groups()
        value = " ".join(re.findall(r"'(.*?)'", values))
        return f"{option} is '{value}'; {WANTED.get(kind.split('|')[-1].strip('{}'), kind)} is wanted"
    if match := re.search(r"invalid choice '(.*?)' for argument '(\S+)'. Expected one of \((.*)\)", text):
        value, option, listed = match.groups()
        choices = sorted(choice for choice in re.findall(r"'(.*?)'", listed) if choice != "None")
        return f"{option} is '{value}'; one of {', '.join(choices)} is wanted"
    if match := re.search(r"Missing from (.+?): (\S+)", text):
        return f"{match[1]} was not given {match[2]}; it is wanted (see {match[1]} --help)"
    return (text[:1].lower() + text[1:]).rstrip(".") + " (see ripe --help)"
