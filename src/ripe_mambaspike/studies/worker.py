"""A process that trains runs of a study one after the other: imports, CUDA, kernels and binned clips are paid once.

    python -m ripe_mambaspike.studies.worker              # tasks on standard input, one JSON document a line
    python -m ripe_mambaspike.studies.worker TASK.json    # this one alone, as a Slurm job does

Answers go to the file descriptor RIPE_WORKER_ANSWERS; what a run prints goes to its log. When standard input ends, the
parent wants to stop or is gone: the run stops after its current step.
"""

import gc
import logging
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from ripe_mambaspike.errors import DataError, RipeError
from ripe_mambaspike.schema import Document, decode_json

ANSWERS_VARIABLE = "RIPE_WORKER_ANSWERS"
SAVE_SECONDS = 20.0  # between checkpoints: epochs of a short run take a second, and writing one takes as long
LOCK_SECONDS = 30.0  # that a worker waits for a run which another process has
Event = Literal["epoch", "ended", "stopped", "failed"]


class RunTask(Document, frozen=True):
    """A run to train and measure; `recipe` has the plain values of its recipe."""

    recipe: dict[str, Any]
    folder: str
    log: str
    measures: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    shared: bool = False  # other runs use the device at the same time, so its speed says nothing


class Answer(Document, frozen=True):
    """What a worker says of its run: an epoch has passed, or how it ended."""

    event: Event
    folder: str
    done: int = 0  # epochs
    total: int = 0
    error: str = ""
    leaving: bool = False  # after an error that may have left the process unusable, as one of CUDA


class LogCallback:
    """One line an epoch on standard output, and an answer to the parent."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self.report, self.epochs = report, 0

    def on_train_begin(self, recipe: Any, data: dict[str, Any], trainer: Any) -> None:
        self.epochs = recipe.schedule.epochs
        print(f"{recipe.name}: train {data['train']}, test {data['test']}, on {trainer.device}", flush=True)

    def on_step_end(self, trainer: Any) -> None: ...

    def on_epoch_end(self, row: dict[str, float | None], best: Any) -> None:
        shown = "  ".join(f"{name} {row[name]:.4g}" for name in ("loss", "val_top1", "seconds") if row.get(name))
        print(f"epoch {row['epoch']:.0f}/{self.epochs}  {shown}", flush=True)
        self.report(int(row["epoch"] or 0), self.epochs)

    def on_message(self, line: str) -> None:
        print(line, flush=True)


def do_task(task: RunTask, stop_requested: Callable[[], bool], report: Callable[[int, int], None]) -> None:
    """Train the run, or go on with it, and measure its network; raises `TrainingStopped` when it was asked to stop."""
    from ripe_mambaspike.studies.measures import measure_run
    from ripe_mambaspike.train.recipes import recipe_from
    from ripe_mambaspike.train.run_folder import CHECKPOINTS

    recipe, folder = recipe_from(task.recipe, f"the recipe of {task.folder}"), Path(task.folder)
    _train_when_free(recipe, folder, LogCallback(report), stop_requested)
    measure_run(
        folder, task.measures, task.conditions, root=recipe.data.root, device=recipe.run.device, shared=task.shared
    )
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)  # of a run that has ended: hundreds would fill a disk


def _train_when_free(recipe: Any, folder: Path, callback: LogCallback, stop_requested: Callable[[], bool]) -> None:
    """Train; a worker of a study that was killed may still be at its last step, so a locked folder is waited for."""
    from ripe_mambaspike.train.run import train

    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            train(
                recipe, folder, resume=True, callback=callback, stop_requested=stop_requested, save_seconds=SAVE_SECONDS
            )  # fmt: skip
            return
        except DataError as error:
            is_busy = error.field == "lock" and isinstance(error.__cause__, BlockingIOError)
            if not is_busy or stop_requested() or time.monotonic() >= until:
                raise
        time.sleep(0.2)


def answer_task(task: RunTask, stop_requested: Callable[[], bool], send: Callable[[Answer], None]) -> bool:
    """Do a task and say how it ended; False where the process should do no other."""
    from ripe_mambaspike.train.callback import TrainingStopped

    def say(event: Event, **values: Any) -> None:
        send(Answer(event=event, folder=task.folder, **values))

    try:
        do_task(task, stop_requested, lambda done, total: say("epoch", done=done, total=total))
    except TrainingStopped:
        say("stopped")
    except RipeError as error:
        print(f"ripe: {error}", flush=True)
        say("failed", error=str(error))
    except Exception as error:  # any: it belongs to this run, and the others go on
        traceback.print_exc()
        say("failed", error=f"{type(error).__name__}: {error}", leaving=True)
        return False
    else:
        say("ended")
    finally:
        _free_memory()
    return True


def do_tasks(tasks: BinaryIO, send: Callable[[Answer], None]) -> None:
    """Do the tasks that arrive until there are no more."""
    while line := tasks.readline():
        if _has_line(tasks):  # it has ended already: the parent is gone
            return
        task = decode_json(line, RunTask)
        _write_to(Path(task.log))
        if not answer_task(task, lambda: _has_line(tasks), send):
            return


def run_worker(words: list[str]) -> int:
    """Tasks from a file, or from standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    _prepare()
    if words:
        return _run_file(Path(words[0]))
    tasks = os.fdopen(0, "rb", buffering=0)  # unbuffered: `select` has to see what was not read yet
    answers = os.fdopen(int(os.environ[ANSWERS_VARIABLE]), "wb", buffering=0)
    do_tasks(tasks, lambda answer: _send(answers, answer))
    return 0


def _run_file(path: Path) -> int:
    task = decode_json(path.read_bytes(), RunTask, origin=path)
    said: list[Answer] = []
    answer_task(task, lambda: False, said.append)
    return 0 if said[-1].event == "ended" else 1


def _send(answers: BinaryIO, answer: Answer) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")


def _has_line(tasks: BinaryIO) -> bool:
    """Whether there is something to read, or the other end is closed."""
    return bool(select.select([tasks], [], [], 0)[0])


def _write_to(log: Path) -> None:
    """From here on, all that this process prints goes to this log, also what C++ and CUDA print."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _prepare() -> None:
    from ripe_mambaspike.data.kept_clips import share_binned_clips
    from ripe_mambaspike.ops.memory import keep_freed_memory
    from ripe_mambaspike.own_modules import import_own_modules

    keep_freed_memory()
    share_binned_clips()
    import_own_modules()


def _free_memory() -> None:
    """Give the memory of a run back, so that the next ones and other workers have it."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    raise SystemExit(run_worker(sys.argv[1:]))
