"""The command `ripe`. A command imports torch when it runs, so that `ripe --help` answers at once."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro

from ripe_mambaspike import __version__
from ripe_mambaspike.cli.account import AccountCommand
from ripe_mambaspike.cli.bench import BenchCommand
from ripe_mambaspike.cli.check import CheckCommand
from ripe_mambaspike.cli.data import DataCommand
from ripe_mambaspike.cli.eval import EvalCommand
from ripe_mambaspike.cli.export import ExportCommand
from ripe_mambaspike.cli.fuse import FuseCommand
from ripe_mambaspike.cli.models import ModelsCommand
from ripe_mambaspike.cli.openmp import limit_openmp_spin
from ripe_mambaspike.cli.predict import PredictCommand
from ripe_mambaspike.cli.recipes import RecipesCommand, show_fields
from ripe_mambaspike.cli.seeds import SeedsCommand
from ripe_mambaspike.cli.serve import ServeCommand
from ripe_mambaspike.cli.sim import SimCommand
from ripe_mambaspike.cli.stream import StreamCommand
from ripe_mambaspike.cli.train import TrainCommand, gather_settings
from ripe_mambaspike.errors import ConfigError, RipeError

COMMANDS = {
    "account": AccountCommand,
    "bench": BenchCommand,
    "check": CheckCommand,
    "data": DataCommand,
    "eval": EvalCommand,
    "export": ExportCommand,
    "fuse": FuseCommand,
    "models": ModelsCommand,
    "predict": PredictCommand,
    "recipes": RecipesCommand,
    "seeds": SeedsCommand,
    "serve": ServeCommand,
    "sim": SimCommand,
    "stream": StreamCommand,
    "train": TrainCommand,
}
RENAMED_OPTIONS = {  # earlier spelling → today's, by command
    "account": {"--resolution": "--in-size", "--steps": "--time-steps"},
    "bench": {"--steps": "--time-steps"},
    "eval": {"--cut": "--partition"},
    "predict": {"--steps": "--time-steps"},
    "serve": {"--most-events": "--max-events", "--most-seconds": "--max-seconds"},
    "stream": {"--steps": "--time-steps", "--answers": "--max-predictions"},
}
WITH_RECIPE_FIELDS = ("seeds", "train")  # commands whose help lists the fields of a recipe
DESCRIPTION = "RIPE-MambaSpike: a compact classifier for event cameras. ripe --version prints the version."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 for success, 2 for input that it cannot use."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        print(f"ripe {__version__}")
        return 0
    try:
        _check_renamed(words)
        command = _parse(words)
        if isinstance(command, int):
            return command
        limit_openmp_spin()
        if not isinstance(command, DataCommand):  # which does not use torch
            from ripe_mambaspike.ops.memory import keep_freed_memory

            keep_freed_memory()
        return command.run()
    except RipeError as error:
        return _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return _fail("not enough memory; try a smaller --grid or --in-size, or fewer --time-steps")
        raise
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output has gone. Discard the rest, also when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _fail(message: str) -> int:
    print(f"ripe: {message}", file=sys.stderr)
    return 2


def _check_renamed(words: list[str]) -> None:
    renamed = RENAMED_OPTIONS.get(words[0], {}) if words else {}
    for word in words:
        if word in renamed:
            raise ConfigError(f"{word}: expected {renamed[word]}, got its earlier name", field=word)


def _parse(words: list[str]) -> Any:
    """The parsed command, or an exit code after help or an error that the parser has printed."""
    commands = tuple(Annotated[command, tyro.conf.subcommand(name)] for name, command in COMMANDS.items())
    choices: Any = Union[commands]  # noqa: UP007
    try:
        return tyro.cli(
            choices,
            prog="ripe",
            description=DESCRIPTION,
            args=gather_settings(words),
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
        )
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
        if code == 0 and words[0] in WITH_RECIPE_FIELDS:
            show_fields()
        return code
