"""Training on the saved recordings: `ripe train few` in a process of its own, followed by its log."""

import asyncio
import csv
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.files import make_folder, read_regular, remove_path
from ripe_mambaspike.train.jobs import last_lines
from ripe_mambaspike.train.recipes import load_recipe
from ripe_mambaspike.train.run_folder import LOG_FILE, RECIPE_FILE
from ripe_mambaspike.yaml_text import yaml_value

RECIPE = "few"
POLL_SECONDS = 0.5
STOP_SECONDS = 5.0  # that a canceled run gets before it is killed
MAX_LOG_BYTES = 4 << 20
TrainingPhase = Literal["idle", "preparing", "training", "loading", "done", "failed", "canceled"]


@dataclass(frozen=True)
class TrainingProgress:
    """What the page shows of a training run."""

    phase: TrainingPhase = "idle"
    epoch: int = 0
    epochs: int = 0
    loss: float | None = None
    accuracy: float | None = None  # on the training clips, as they are trained
    losses: tuple[float, ...] = ()  # of every epoch so far
    seconds: float = 0.0
    left: float | None = None  # seconds, estimated
    run: str = ""  # the folder of the network
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def train_words(root: Path, run: Path) -> list[str]:
    """The command that trains on a folder of recordings."""
    setting = f"data.root={yaml_value(str(root))}"
    return [sys.executable, "-m", "ripe_mambaspike", "train", RECIPE, "--out", str(run), "--set", setting]


class TrainingJob:
    """At most one training run at a time on a folder of recordings, in a process group of its own.

    The networks are written to `runs`/NAME-001 and so on, NAME being that of the folder. A run that fails, is canceled
    or takes too long leaves nothing there. `on_trained` gets the folder of a run that has ended well; what it raises
    is shown as the error of the run, whose network stays.
    """

    def __init__(
        self,
        root: Path,
        runs: Path,
        max_seconds: int,
        words: Callable[[Path, Path], list[str]] = train_words,
    ) -> None:
        self.root, self.runs, self.version = root, runs, 0
        self.progress = TrainingProgress()
        self._max_seconds, self._words = max_seconds, words
        self._task: asyncio.Task[None] | None = None
        self._began = 0.0

    @property
    def active(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, on_trained: Callable[[Path], Any]) -> None:
        """Start a run; `on_trained(folder)` is awaited when it has ended well."""
        if self.active:
            raise InputError.expected("train", "no training under way", "one")
        self._began = time.monotonic()
        self._show(TrainingProgress("preparing"))
        self._task = asyncio.create_task(self._run(on_trained))

    async def cancel(self) -> None:
        """Stop the run, if there is one, and remove what it wrote."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if self.progress.phase not in ("done", "failed"):  # which it may have reached in this very moment
                self._show(replace(self.progress, phase="canceled", left=None))

    async def _run(self, on_trained: Callable[[Path], Any]) -> None:
        run: Path | None = None
        trained = False
        try:
            run = await asyncio.to_thread(self._next_folder)
            await self._train(run)
            trained = True
            self._show(replace(self.progress, phase="loading", left=None))
            await on_trained(run)
            self._show(replace(self.progress, phase="done", run=str(run)))
        except TimeoutError:
            self._fail(f"train: expected an end within {self._max_seconds / 60:.0f} minutes, got none")
        except RipeError as error:
            kept = f"{error}; the network is in {run}" if trained else str(error)
            self._fail(kept)
        except Exception as error:  # the server goes on, whatever happened to the run
            self._fail(f"train: it failed ({type(error).__name__}: {error})")
        finally:
            if run is not None and not trained:
                remove_path(run)
                _log_path(run).unlink(missing_ok=True)

    async def _train(self, run: Path) -> None:
        """The process, from its start to its end; nothing of it is left running."""
        log = _log_path(run)
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *self._words(self.root, run),
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            async with asyncio.timeout(self._max_seconds):
                while process.returncode is None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_SECONDS):
                            await process.wait()
                    found = await asyncio.to_thread(read_progress, run)
                    seconds = time.monotonic() - self._began
                    self._show(found if found.epoch else replace(self.progress, seconds=seconds), seconds)
        finally:
            await _end(process)
        if process.returncode:
            last = next(iter(last_lines(log, 1)), f"it ended with the code {process.returncode}")
            raise InputError(last, field="train")
        log.unlink(missing_ok=True)

    def _next_folder(self) -> Path:
        """A new folder for a run, made so that no other takes it."""
        try:
            make_folder(self.runs)
            for number in range(1, 10_000):
                folder = self.runs / f"{self.root.resolve().name or 'recorded'}-{number:03d}"
                with suppress(FileExistsError):
                    folder.mkdir()
                    return folder
        except OSError as error:
            raise InputError.expected("runs", "a folder that can be written", error, path=self.runs) from error
        raise InputError.expected("runs", "fewer than 10,000 runs", "more", path=self.runs)

    def _fail(self, error: str) -> None:
        self._show(replace(self.progress, phase="failed", left=None, error=error))

    def _show(self, progress: TrainingProgress, seconds: float | None = None) -> None:
        self.progress = progress if seconds is None else replace(progress, seconds=seconds)
        self.version += 1


def read_progress(run: Path) -> TrainingProgress:
    """How far a run is, by its recipe and its log; nothing is known before its first epoch has ended."""
    try:
        epochs = load_recipe(run / RECIPE_FILE).schedule.epochs
        text = read_regular(run / LOG_FILE, MAX_LOG_BYTES).decode()
        rows = list(csv.DictReader(io.StringIO(text)))
        losses = tuple(float(row["loss"]) for row in rows)
        spent, accuracy = float(rows[-1]["seconds"]), float(rows[-1]["train_top1"])
    except (OSError, RipeError, ValueError, KeyError, IndexError, TypeError):
        return TrainingProgress("preparing")
    done = len(losses)
    left = spent / done * max(0, epochs - done)
    return TrainingProgress("training", done, epochs, losses[-1], accuracy, losses, left=left)


def _log_path(run: Path) -> Path:
    return run.with_name(f"{run.name}.txt")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and those that it started, if they still run."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
