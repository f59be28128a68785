"""The command `ripe`. A command imports torch when it runs, so that `ripe --help` answers at once."""

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Union, get_type_hints

import tyro

from ripe_mambaspike import __version__
from ripe_mambaspike.cli.account import AccountCommand
from ripe_mambaspike.cli.adapt import AdaptCommand
from ripe_mambaspike.cli.bench import BENCH_COMMANDS
from ripe_mambaspike.cli.calibrate import CalibrateCommand
from ripe_mambaspike.cli.check import CheckCommand
from ripe_mambaspike.cli.data import DATA_COMMANDS
from ripe_mambaspike.cli.eval import EvalCommand
from ripe_mambaspike.cli.export import ExportCommand
from ripe_mambaspike.cli.figure import FigureCommand
from ripe_mambaspike.cli.fuse import FuseCommand
from ripe_mambaspike.cli.models import ModelsCommand
from ripe_mambaspike.cli.openmp import limit_openmp_spin
from ripe_mambaspike.cli.output import print_message
from ripe_mambaspike.cli.paper import PaperCommand
from ripe_mambaspike.cli.predict import PredictCommand
from ripe_mambaspike.cli.recipes import RecipesCommand, show_fields
from ripe_mambaspike.cli.record import RecordCommand
from ripe_mambaspike.cli.report import ReportCommand
from ripe_mambaspike.cli.seeds import SeedsCommand
from ripe_mambaspike.cli.send import SendCommand
from ripe_mambaspike.cli.serve import ServeCommand
from ripe_mambaspike.cli.sim import SIM_COMMANDS
from ripe_mambaspike.cli.stream import StreamCommand
from ripe_mambaspike.cli.study import StudyCommand
from ripe_mambaspike.cli.table import TableCommand
from ripe_mambaspike.cli.train import TrainCommand, complete_resume, gather_settings
from ripe_mambaspike.errors import ConfigError, RipeError
from ripe_mambaspike.own_modules import import_own_modules

COMMANDS = {
    "account": AccountCommand,
    "adapt": AdaptCommand,
    "bench": (BENCH_COMMANDS, "Measure speed and memory, beside the plain-PyTorch reference path and Mamba-Spike."),
    "calibrate": CalibrateCommand,
    "check": CheckCommand,
    "data": (DATA_COMMANDS, "Look at recordings, convert them, and prepare datasets for training."),
    "eval": EvalCommand,
    "export": ExportCommand,
    "figure": FigureCommand,
    "fuse": FuseCommand,
    "models": ModelsCommand,
    "paper": PaperCommand,
    "predict": PredictCommand,
    "recipes": RecipesCommand,
    "record": RecordCommand,
    "report": ReportCommand,
    "seeds": SeedsCommand,
    "send": SendCommand,
    "serve": ServeCommand,
    "sim": (SIM_COMMANDS, "Simulate recordings, and fit the simulated camera to real ones."),
    "stream": StreamCommand,
    "study": StudyCommand,
    "table": TableCommand,
    "train": TrainCommand,
}
RENAMED_OPTIONS = {  # earlier spelling → today's, by command
    "account": {
        "--resolution": "--in-size",
        "--steps": "--time-steps",
        "--sweep resolution": "--sweep in_size",
        "--sweep steps": "--sweep time_steps",
        "--sweep tokens": "--sweep num_tokens",
    },
    "bench": {"--steps": "--time-steps", "--side": "--in-size", "--sides": "--in-size"},
    "eval": {"--cut": "--partition"},
    "predict": {"--steps": "--time-steps"},
    "serve": {"--most-events": "--max-events", "--most-seconds": "--max-seconds"},
    "stream": {"--steps": "--time-steps", "--answers": "--max-predictions"},
}
WITH_RECIPE_FIELDS = ("seeds", "train")  # commands whose help lists the fields of a recipe
DESCRIPTION = (
    "RIPE-MambaSpike: a compact classifier for event cameras. ripe --version prints the version. RIPE_IMPORT=FILE.py "
    "in the environment imports your own file first, which registers a neuron, a dataset, … (CONTRIBUTING.md)."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 for success, 2 for input that it cannot use."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        print(f"ripe {__version__}")
        return 0
    command = None
    try:
        _check_renamed(words)
        command = _parse(words)
        if isinstance(command, int):
            return command
        limit_openmp_spin()
        if words[0] not in ("data", "record", "send"):  # which do not use torch
            from ripe_mambaspike.ops.memory import keep_freed_memory

            keep_freed_memory()
        import_own_modules()
        return int(command.run())
    except RipeError as error:
        return _fail(_name_option(error, command))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return _fail("not enough memory" + _smaller(command))
        raise
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output has gone. Discard the rest, also when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _fail(message: str) -> int:
    print_message(message)
    return 2


def _name_option(error: RipeError, command: Any) -> str:
    """The message with an option written as it was given: --time-steps for time_steps, --queue for queue_events.

    A positional argument has the name of the command's help: RECIPE for recipe.
    """
    field, hints = error.field or "", get_type_hints(type(command), include_extras=True)
    for name in (field, field.rpartition("_")[0], f"{field}_folder"):  # --run is run_folder: run is the method
        if name in hints and str(error).startswith(f"{field}: "):
            option = name.removesuffix("_folder").replace("_", "-")
            shown, markers = f"--{option}", getattr(hints[name], "__metadata__", ())
            if tyro.conf.Positional in markers:
                shown = next(one.metavar for one in markers if getattr(one, "metavar", None))
            return f"{shown}{str(error)[len(field) :]}"
    return str(error)


def _smaller(command: Any) -> str:
    """Which options of the command need less memory when they are smaller."""
    if hasattr(command, "set") and hasattr(command, "recipe"):
        return "; try a smaller schedule.batch_size, data.grid or data.time_steps (with --set)"
    names = ("batches", "batch", "grid", "in_size", "time_steps")
    options = [f"--{name.replace('_', '-')}" for name in names if hasattr(command, name)]
    return f"; try a smaller {' or '.join(options)}" if options else ""


def _check_renamed(words: list[str]) -> None:
    renamed = RENAMED_OPTIONS.get(words[0], {}) if words else {}
    for word in (*words, *map(" ".join, pairwise(words))):  # options, and options with their values
        if word in renamed:
            raise ConfigError.expected(word, renamed[word], "its earlier name")


def _choices(commands: Mapping[str, Any], brief: bool = False) -> Any:
    """The commands as subcommands; a pair is a group of commands and its description."""
    choices: list[Any] = []
    for name, command in commands.items():
        text = command.__doc__.partition("\n")[0] if brief else None
        if isinstance(command, tuple):
            command, text = _choices(command[0]), command[1]
        choices.append(Annotated[command, tyro.conf.subcommand(name, description=text)])
    return Union[tuple(choices)]  # noqa: UP007


def _parse(words: list[str]) -> Any:
    """The parsed command, or an exit code after help or an error that the parser has printed.

    The parser gets the command or group that the first words name, so that its errors speak of that one alone.
    """
    program, rest = "ripe", gather_settings(complete_resume(words))
    commands: Any = COMMANDS
    description: str | None = DESCRIPTION
    while isinstance(commands, Mapping) and rest and rest[0] in commands:
        program, found, rest = f"{program} {rest[0]}", commands[rest[0]], rest[1:]
        commands, description = found if isinstance(found, tuple) else (found, None)
    if commands is COMMANDS and not rest:
        rest = ["--help"]  # ripe alone
    brief = commands is COMMANDS and rest[:1] in (["-h"], ["--help"])
    try:
        return tyro.cli(
            _choices(commands, brief) if isinstance(commands, Mapping) else commands,
            prog=program,
            description=description,
            args=rest,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
        )
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
        if code == 0 and words and words[0] in WITH_RECIPE_FIELDS:
            show_fields()
        return code
