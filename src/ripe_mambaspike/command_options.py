"""Types of the options that several commands share. The text under a field is its help, unless its type has one."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro


def option(metavar: str | None = None, text: str | None = None) -> Any:
    """How an option is shown in `--help`; a default is shown only where it is a value."""
    return tyro.conf.arg(metavar=metavar, help=text, help_behavior_hint=_default_text)


def _default_text(default: str) -> str:
    return "" if default in ("", "None", "True", "False") else f"(default: {default})"


Flag = Annotated[bool, option()]
Number = Annotated[int, option("N")]
Count = Annotated[int | None, option("N")]
Counts = Annotated[list[int], option("N")]
Float = Annotated[float | None, option("X")]
Milliseconds = Annotated[float | None, option("MS")]
Folder = Annotated[Path | None, option("DIR")]
Settings = Annotated[list[str], option("FIELD=VALUE")]
DeviceName = Literal["auto", "cpu", "cuda"]
Checkpoint = Annotated[Path, tyro.conf.Positional, option("CHECKPOINT")]
Protocol = Annotated[
    Literal["validation", "paper"] | None,
    option("{validation,paper}", "Sets run.protocol: paper holds nothing out and reports the best test epoch."),
]
Epochs = Annotated[int | None, option("N", "Sets schedule.epochs.")]
BatchSize = Annotated[int | None, option("N", "Sets schedule.batch_size: clips of one step, for each process.")]
GridSide = Annotated[int | None, option("N", "Sets data.grid to a square of this side.")]
Jobs = Annotated[int | None, option("N", "Number of runs at a time on this machine. Default: 1.")]
Slurm = Annotated[
    list[str] | None,  # empty where it was given without a partition
    option(
        "PARTITION|KEY=VALUE",
        "Run on Slurm instead: a partition, then options of submitit, such as timeout_min=600 gpus_per_node=1.",
    ),
]
SHORT_OPTIONS = {  # of commands that take a recipe → its field
    "epochs": "schedule.epochs",
    "batch_size": "schedule.batch_size",
    "grid": "data.grid",
    "protocol": "run.protocol",
}
Results = Annotated[
    list[str],
    tyro.conf.UseAppendAction,
    option(
        "DIR",
        "Folder of stored results, such as runs; may be repeated, and the last one that has a study counts. The word "
        "stored is benchmarks/results of the checkout, which is the default.",
    ),
]
Json = Annotated[bool, option(text="Print one JSON document.")]
SensorSize = Annotated[tuple[int, int] | None, option("W H")]
CropArea = Annotated[tuple[int, int, int, int] | None, option("X Y W H")]
FormatName = Annotated[
    str | None,
    option("NAME", "Format of the recordings, such as dat or evt3, instead of recognizing it by content."),
]
TimeUnit = Annotated[Literal["s", "ms", "us", "ns"] | None, option("{s,ms,us,ns}")]


def short_settings(command: Any) -> list[str]:
    """The settings of a recipe that a command's short options stand for."""
    given = {field: getattr(command, name) for name, field in SHORT_OPTIONS.items()}
    return [f"{field}={value}" for field, value in given.items() if value is not None]
