"""`ripe train`: one command for every benchmark and for your own recordings."""

import logging
import re
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.markup import escape

from ripe_mambaspike.cli.output import console, format_number, print_json
from ripe_mambaspike.cli.progress import ProgressUpdate, progress_bar
from ripe_mambaspike.cli.signals import stop_on_signal
from ripe_mambaspike.command_options import (
    BatchSize,
    Epochs,
    Folder,
    GridSide,
    Json,
    Protocol,
    Settings,
    option,
    short_settings,
)

if TYPE_CHECKING:
    import torch

    from ripe_mambaspike.models.accuracy import TrainingResult
    from ripe_mambaspike.train.checkpoint import BestEpoch
    from ripe_mambaspike.train.recipe import Recipe
    from ripe_mambaspike.train.trainer import Trainer

RECIPE_OPTION = re.compile(r"--([a-z]+(?:\.[\w-]+)+)(=.*)?", re.DOTALL)  # such as --schedule.epochs
NEGATIVE = re.compile(r"-[\d.].*")


@dataclass
class TrainCommand:
    """Train a network with a recipe, select it on validation clips, test it once, and write a report.

    Every field of a recipe can be set; they are listed below, and ripe recipes NAME shows a recipe's own values. The
    run's folder holds the complete recipe, log.csv, checkpoints, the selected network in best/, result.json and
    report.html.

    With torchrun --nproc-per-node N -m ripe_mambaspike train … one run uses N processes with schedule.batch_size clips
    each.
    """

    recipe: Annotated[str, tyro.conf.Positional, option("RECIPE")]
    """A recipe by name (see ripe recipes), or a YAML file."""
    set: Settings = field(default_factory=list)
    """Fields to change, such as schedule.epochs=30 data.root=DIR."""
    pretrained: Annotated[str | None, option("NAME|DIR")] = None
    """Sets model.pretrained: start from a shipped network, such as gestures-simulated, or from a run or a saved
    network; the last layer is new where the classes differ."""
    freeze: Annotated[Literal["stages", "all-but-head"] | None, option("{stages,all-but-head}")] = None
    """Sets model.freeze: leave the spiking stages, or all but the head, as they are."""
    epochs: Epochs = None
    batch_size: BatchSize = None
    grid: GridSide = None
    protocol: Protocol = None
    out: Folder = None
    """The run's folder. Default: the next of runs/NAME-1, runs/NAME-2, …; with --resume the newest of them that has not
    ended or, with the recipe.yaml of a run, the folder of that run."""
    resume: Literal["auto", "off"] = "off"
    """With auto, or without a value, resume the run in that folder if there is one, and start it otherwise."""
    report: Annotated[bool, option(text="Do not write report.html at the end.")] = True
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import train, write_report
        from ripe_mambaspike.nn.eval_mode import choose_device
        from ripe_mambaspike.train.callback import TrainingStopped
        from ripe_mambaspike.train.distributed import process_group, processes_from_environment
        from ripe_mambaspike.train.recipes import load_recipe, with_settings
        from ripe_mambaspike.train.run_folder import RECIPE_FILE, chosen_folder

        processes = processes_from_environment()
        if not processes.is_first:
            logging.getLogger("ripe_mambaspike").setLevel(logging.ERROR)  # rank 0 logs it
        resume = self.resume == "auto"
        base = load_recipe(self.recipe)
        recipe = with_settings(base, [*self.set, *self._start_settings(), *short_settings(self)])
        named = replace(base, name=recipe.name)
        callback = ProgressCallback(quiet=self.json or not processes.is_first)
        device = choose_device(recipe.run.device, "run.device").type
        with stop_on_signal(quiet=not processes.is_first) as requested, callback:
            try:
                with (
                    process_group(processes, device),
                    chosen_folder(self.out, named, self.recipe, resume, processes) as folder,
                ):
                    if self.out is None and processes.is_first:
                        callback.announced = folder
                    result = train(
                        recipe, folder, resume=resume, callback=callback, stop_requested=requested,
                        processes=processes,
                    )  # fmt: skip
            except TrainingStopped:
                again = f"ripe train {folder / RECIPE_FILE} --resume"
                callback.on_message(f"stopped; {folder} is saved, and --resume auto, or {again}, continues it")
                return 130
        if not processes.is_first:
            return 0
        page = write_report(folder, root=recipe.data.root) if self.report else None
        if self.json:
            print_json(result.to_dict())
        else:
            show_result(result, folder, page)
        return 0

    def _start_settings(self) -> list[str]:
        """The settings of a recipe that --pretrained and --freeze stand for."""
        from ripe_mambaspike.yaml_text import yaml_value

        given = {"model.pretrained": self.pretrained, "model.freeze": self.freeze}
        return [f"{name}={yaml_value(value)}" for name, value in given.items() if value is not None]


def complete_resume(words: list[str]) -> list[str]:
    """`--resume` without a value as `--resume auto`."""
    completed: list[str] = []
    for word, following in zip_longest(words, words[1:], fillvalue="-"):
        completed += [word, "auto"] if word == "--resume" and following.startswith("-") else [word]
    return completed


def gather_settings(words: list[str]) -> list[str]:
    """`--set a.b=1 --set c.d=2 --e.f 3` as `--set a.b=1 c.d=2 e.f=3`, which is what the parser takes."""
    settings: list[str] = []
    rest: list[str] = []
    into: list[str] = rest
    for word in words:
        if field := RECIPE_OPTION.fullmatch(word):
            into = [] if field[2] is None else rest
            settings.append(field[1].replace("-", "_") + (field[2] or ""))
            values = into
        elif word == "--set":
            into = settings
        elif word.startswith("-") and not NEGATIVE.fullmatch(word):
            into = rest
            rest.append(word)
        elif into is rest or into is settings:
            into.append(word)
        else:  # of an option: one value, or several as a list
            values.append(word)
            name = settings[-1].partition("=")[0]
            settings[-1] = f"{name}={values[0]}" if len(values) == 1 else f"{name}=[{', '.join(values)}]"
    return [*rest, "--set", *settings] if settings else words


def show_result(result: "TrainingResult", folder: Path, page: Path | None) -> None:
    from ripe_mambaspike.models.accuracy import BEST_TEST_EPOCH

    out = console()
    how = {
        "val": "selected on validation clips, tested once",
        "test": BEST_TEST_EPOCH,
        "last epoch": "the last epoch, tested once",
    }[result.picked_on]
    if result.top1 is None:
        out.print(f"[bold]not tested[/]: {result.set} has no test split; epoch {result.epoch}, the last one")
    else:
        share = f"{100 * result.top1:.2f} %"
        out.print(f"[bold]top-1 {share}[/] of {result.n} {result.set} test clips; epoch {result.epoch}, {how}")
    for warning in result.warnings:
        out.print(f"[bold]warning:[/] {escape(warning)}", soft_wrap=True)
    out.print(f"network {folder / 'best'}, result {folder / 'result.json'}, log {folder / 'log.csv'}")
    if page is not None:
        out.print(f"report {page}")


class ProgressCallback:
    """Prints the progress of a run: a bar within an epoch on a terminal, and a line for every epoch."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.announced: Path | None = None  # a folder that was chosen for the user, named also where it is quiet
        self._bar = ExitStack()
        self._update: ProgressUpdate | None = None
        self._selecting = "val"  # the clips that the network is selected on
        self._start, self._steps, self._total = time.monotonic(), 0, 1

    def __enter__(self) -> "ProgressCallback":
        if sys.stderr.isatty() and not self.quiet:
            self._update = self._bar.enter_context(progress_bar())
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def on_message(self, line: str) -> None:
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def on_train_begin(self, recipe: "Recipe", data: dict[str, Any], trainer: "Trainer") -> None:
        if self.announced is not None:
            print(f"run folder {self.announced}", file=sys.stderr, flush=True)
        sizes = ", ".join(f"{part} {data[part]}" for part in ("train", "val", "test"))
        self.on_message(
            f"{recipe.name}: {data['dataset']} ({data['partition']}, store {data['store']}), {sizes}; "
            f"{trainer.model.parameter_count():,} parameters on {trainer.device}"
        )
        if recipe.run.protocol == "paper":
            self._selecting = "test"
            self.on_message("paper protocol: the best test epoch is selected, so its accuracy is too good")
        self._total = max(1, recipe.schedule.epochs)
        self._start, self._steps = time.monotonic(), 0

    def on_step_end(self, trainer: "Trainer") -> None:
        self._steps += 1
        if self._update is None:
            return
        state = trainer.state
        spent = time.monotonic() - self._start
        batches_left = (self._total - state.epoch) * trainer.batches - state.batch
        left = spent / self._steps * batches_left / max(1, trainer.recipe.schedule.grad_accum_steps)
        loss = float(trainer.sums[0]) / max(1, state.clips)
        speed = state.clips / max(state.seconds, 1e-9)
        text = f"loss {loss:.3f}  {speed:.0f} clips/s  {memory(trainer.device)}{clock(left)} left"
        self._update(f"epoch {state.epoch + 1}/{self._total}  {text}", state.batch, trainer.batches)

    def on_epoch_end(self, row: dict[str, float | None], best: "BestEpoch | None") -> None:
        picked = " *" if best is not None and best.epoch == row["epoch"] else ""
        val = "" if row.get("val_top1") is None else f"  {self._selecting} {100 * (row['val_top1'] or 0):.2f} %{picked}"
        fired = "" if row["rate"] is None else f"  firing rate {format_number(row['rate'], 2)}"
        self.on_message(
            f"epoch {row['epoch']:.0f}/{self._total}  loss {format_number(row['loss'])}  train "
            f"{100 * (row['train_top1'] or 0):.1f} %{val}{fired}  "
            f"{format_number(row['samples_per_second'], 3)} clips/s  {format_number(row['memory_mib'], 3)} MiB  "
            f"{clock(row['seconds'] or 0)}"
        )


def memory(device: "torch.device") -> str:
    """The largest memory used so far, where the system reports it."""
    from ripe_mambaspike.train.trainer import peak_memory

    found = peak_memory(device)
    return "" if found is None else f"{found:,.0f} MiB  "


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are some."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
