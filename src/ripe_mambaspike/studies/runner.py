"""Runs of a study in a bounded number of worker processes, or on Slurm.

Each worker trains several runs one after the other (see worker.py). A worker that dies is replaced, and its run has
failed; the others go on. When the runner is asked to stop, every run stops after its current step with a checkpoint,
and the next call continues it.
"""

import os
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from ripe_mambaspike.files import write_file
from ripe_mambaspike.ops.cores import available_cores
from ripe_mambaspike.schema import decode_json
from ripe_mambaspike.studies.plan import StudyRun
from ripe_mambaspike.studies.worker import ANSWERS_VARIABLE, Answer, RunTask
from ripe_mambaspike.train import jobs
from ripe_mambaspike.train.recipes import to_dict
from ripe_mambaspike.train.threads import VARIABLE as THREADS_VARIABLE

STOP_SECONDS = 30.0  # that a worker has for its last step and the checkpoint
POLL_SECONDS = 0.5
LOG_LINES = 5  # of a run that failed
WORKER = (sys.executable, "-m", "ripe_mambaspike.studies.worker")


class StudyProgress(NamedTuple):
    """How far a study is. `seconds_left` is None until a run of this call has come some way."""

    total: int
    ended: int
    failed: int
    running: int
    seconds_left: float | None


class Outcome(NamedTuple):
    """How a run ended in this call; `error` says why it failed, and neither is set for one that was stopped."""

    run: StudyRun
    ended: bool
    error: str | None = None


Watch = Callable[[StudyProgress, Outcome | None], None]


@dataclass
class Worker:
    """A worker process and the run that it has."""

    process: subprocess.Popen[bytes]
    answers: IO[bytes]
    run: StudyRun | None = None
    rest: bytes = b""  # of an answer that has not arrived whole
    epochs: tuple[int, int] = (0, 1)  # done, of how many
    begun: float = 0.0
    whole: bool = True  # the run begins with its first step: it is neither resumed nor only measured


def run_workers(
    runs: Sequence[StudyRun],
    num_jobs: int,
    *,
    measures: Sequence[str] = (),
    conditions: Sequence[str] = (),
    limit_s: float | None = None,
    weights: Sequence[float] | None = None,
    whole_runs: bool = False,
    seconds_per_weight: float | None = None,
    already: int = 0,
    watch: Watch = lambda progress, outcome: None,
) -> list[Outcome]:
    """Run all, `num_jobs` at once; stop after `limit_s` seconds, or by KeyboardInterrupt, which is raised again.

    weights: how long each run takes in comparison with the others, for the time left
    whole_runs: begin no run that is not expected to end within the limit
    seconds_per_weight: for `whole_runs`, until a run has ended; None begins every run until then
    already: runs that had ended before, for the progress
    """
    pool = _Pool(runs, num_jobs, measures, conditions, weights, whole_runs, seconds_per_weight, already, watch)
    with jobs.interrupted_by_terminate(), _threads_of(num_jobs):
        try:
            pool.work(None if limit_s is None else time.monotonic() + limit_s)
        finally:
            pool.stop()
    return pool.outcomes


class _Pool:
    def __init__(
        self,
        runs: Sequence[StudyRun],
        num_jobs: int,
        measures: Sequence[str],
        conditions: Sequence[str],
        weights: Sequence[float] | None,
        whole_runs: bool,
        seconds_per_weight: float | None,
        already: int,
        watch: Watch,
    ) -> None:
        self.waiting, self.num_jobs, self.already = list(runs), num_jobs, already
        self.measures, self.conditions = tuple(measures), tuple(conditions)
        self.weights = dict(zip((run.folder for run in runs), weights or [1.0] * len(runs), strict=True))
        self.watch = watch
        self.workers: list[Worker] = []
        self.outcomes: list[Outcome] = []
        self.selector = selectors.DefaultSelector()
        self.start = time.monotonic()
        self.whole_runs, self.seconds_per_weight = whole_runs, seconds_per_weight
        self.end: float | None = None
        self.paces: list[float] = []  # seconds that whole runs of this call took, for each of their weights

    def work(self, end: float | None) -> None:
        self.end = end
        while end is None or time.monotonic() < end:
            self._hand_out()
            if not any(worker.run for worker in self.workers):
                return
            for key, _ in self.selector.select(POLL_SECONDS):
                self._read(key.data)

    def _next(self) -> StudyRun | None:
        """The next run to begin: the first that is expected to end in time, where that is asked for."""
        for place, run in enumerate(self.waiting):
            if self._ends_in_time(run):
                return self.waiting.pop(place)
        return None

    def _ends_in_time(self, run: StudyRun) -> bool:
        if not self.whole_runs or self.end is None:
            return True
        pace = statistics.median(self.paces) if self.paces else self.seconds_per_weight
        return pace is None or time.monotonic() + pace * self.weights[run.folder] <= self.end

    def _hand_out(self) -> None:
        """Give every idle worker a run, and start workers while there are runs and room."""
        for worker in self.workers:
            if worker.run is None and (run := self._next()) is not None:
                self._give(worker, run)
        while len(self.workers) < self.num_jobs and (run := self._next()) is not None:
            run.job.log.parent.mkdir(parents=True, exist_ok=True)
            worker = _start_worker(run.job.log)
            self.workers.append(worker)
            self.selector.register(worker.answers, selectors.EVENT_READ, worker)
            self._give(worker, run)

    def _give(self, worker: Worker, run: StudyRun) -> None:
        worker.run, worker.epochs, worker.begun, worker.whole = run, (0, 1), time.monotonic(), not run.folder.exists()
        run.error_file.unlink(missing_ok=True)
        with suppress(BrokenPipeError):  # it died: the end of its answers says so
            assert worker.process.stdin is not None
            task = make_task(run, self.measures, self.conditions, shared=self.num_jobs > 1)
            worker.process.stdin.write(msgspec.json.encode(task) + b"\n")
            worker.process.stdin.flush()
        self._tell(None)

    def _read(self, worker: Worker) -> None:
        data = os.read(worker.answers.fileno(), 1 << 16)
        if not data:
            self._bury(worker)
            return
        *lines, worker.rest = (worker.rest + data).split(b"\n")
        for line in lines:
            answer = decode_json(line, Answer)
            if answer.event == "epoch":
                worker.epochs = (answer.done, answer.total)
                self._tell(None)
            else:
                self._end(worker, answer.event == "ended", answer.error or None)
            if answer.leaving:
                self._bury(worker)
                return

    def _end(self, worker: Worker, ended: bool, error: str | None) -> None:
        run, worker.run = worker.run, None
        if run is None:
            return
        if ended and worker.whole:
            self.paces.append((time.monotonic() - worker.begun) / self.weights[run.folder])
        outcome = Outcome(run, ended, error)
        if error is not None:
            write_file(run.error_file, error.encode("utf-8", "replace"))
        self.outcomes.append(outcome)
        self._tell(outcome)

    def _bury(self, worker: Worker) -> None:
        """A worker is gone; its run, if it has one, has failed."""
        self.selector.unregister(worker.answers)
        worker.answers.close()
        self.workers.remove(worker)
        code = worker.process.wait()
        if worker.run is not None:
            lines = jobs.last_lines(worker.run.job.log, LOG_LINES)
            cause = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._end(worker, False, ": ".join([f"the worker died ({cause})", *([" | ".join(lines)] if lines else [])]))

    def stop(self) -> None:
        """Let every worker stop after its step; one that takes too long is killed, and its checkpoint remains."""
        for worker in self.workers:
            with suppress(OSError):
                assert worker.process.stdin is not None
                worker.process.stdin.close()
        until = time.monotonic() + STOP_SECONDS
        for worker in list(self.workers):
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            with suppress(OSError):
                while data := os.read(worker.answers.fileno(), 1 << 16):  # the last answers: a run may have ended
                    worker.rest += data
            for line in worker.rest.split(b"\n")[:-1]:
                answer = decode_json(line, Answer)
                if answer.event != "epoch":
                    self._end(worker, answer.event == "ended", answer.error or None)
            worker.answers.close()
        self.workers.clear()
        self.selector.close()

    def _tell(self, outcome: Outcome | None) -> None:
        ended = self.already + sum(one.ended for one in self.outcomes)
        failed = sum(one.error is not None for one in self.outcomes)
        busy = [worker for worker in self.workers if worker.run is not None]
        total = self.already + len(self.weights)
        self.watch(StudyProgress(total, ended, failed, len(busy), self._seconds_left(busy)), outcome)

    def _seconds_left(self, busy: Iterable[Worker]) -> float | None:
        """From the share of this call's work that is done, counting epochs of runs that are under way."""
        done = sum(self.weights[one.run.folder] for one in self.outcomes)
        for worker in busy:
            assert worker.run is not None
            epoch, epochs = worker.epochs
            done += self.weights[worker.run.folder] * epoch / max(1, epochs)
        whole = sum(self.weights.values())
        return (time.monotonic() - self.start) * (whole - done) / done if done > 0 else None


def make_task(run: StudyRun, measures: Sequence[str], conditions: Sequence[str], *, shared: bool = False) -> RunTask:
    return RunTask(
        recipe=to_dict(run.recipe), folder=str(run.folder), log=str(run.job.log), measures=tuple(measures),
        conditions=tuple(conditions), shared=shared,
    )  # fmt: skip


def _start_worker(log: Path) -> Worker:
    """A worker in a process group of its own, so that Ctrl-C reaches the runner alone."""
    reading, writing = os.pipe()
    with log.open("ab") as file:
        process = subprocess.Popen(
            WORKER,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, ANSWERS_VARIABLE: str(writing)},
            pass_fds=(writing,),
            process_group=0,
        )
    os.close(writing)
    return Worker(process, os.fdopen(reading, "rb", buffering=0))


@contextmanager
def _threads_of(num_jobs: int) -> Iterator[None]:
    """Workers share the cores: each gets its part, unless the environment says how many threads there are."""
    if THREADS_VARIABLE in os.environ:
        yield
        return
    os.environ[THREADS_VARIABLE] = str(max(1, available_cores() // num_jobs))
    try:
        yield
    finally:
        os.environ.pop(THREADS_VARIABLE, None)


def run_on_slurm(
    runs: Sequence[StudyRun],
    out: Path,
    slurm: Sequence[str],
    *,
    measures: Sequence[str] = (),
    conditions: Sequence[str] = (),
    already: int = 0,
    watch: Watch = lambda progress, outcome: None,
) -> list[Outcome]:
    """Every run as a job of its own, by submitit."""
    executor = jobs.slurm_executor(out, jobs.slurm_parameters(slurm))
    by_job, commands = {run.job: run for run in runs}, []
    for run in runs:
        path = run.job.log.with_suffix(".task.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        run.error_file.unlink(missing_ok=True)
        write_file(path, msgspec.json.encode(make_task(run, measures, conditions)))
        commands.append((run.job, [*WORKER, str(path)]))
    outcomes: list[Outcome] = []

    def report(found: jobs.RunOutcome) -> None:
        run = by_job[found.run]
        if found.error is not None:
            write_file(run.error_file, found.error.encode("utf-8", "replace"))
        outcomes.append(Outcome(run, found.result is not None, found.error))
        ended, failed = sum(one.ended for one in outcomes), sum(one.error is not None for one in outcomes)
        running = len(runs) - len(outcomes)
        watch(StudyProgress(already + len(runs), already + ended, failed, running, None), outcomes[-1])

    jobs.run_slurm(commands, executor, report)
    return outcomes


def describe_failures(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    return [
        {"set": one.run.set, "arm": one.run.arm, "seed": one.run.seed, "error": one.error, "log": str(one.run.job.log)}
        for one in outcomes
        if one.error is not None
    ]
