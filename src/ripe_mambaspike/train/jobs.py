"""Training runs in separate processes, on this machine or on Slurm."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ripe_mambaspike.errors import ConfigError, InputError, WeightsError
from ripe_mambaspike.models.accuracy import RESULT_FILE, TrainingResult, read_result

CLUSTER = "slurm"
SLURM_DEFAULTS: dict[str, Any] = {"timeout_min": 24 * 60, "gpus_per_node": 1, "cpus_per_task": 4}
POLL_SECONDS = 1.0
FILE_SYSTEM_SECONDS = 10.0  # until a file written on another machine is visible


class SeedRun(NamedTuple):
    """One training run of a group."""

    seed: int
    fold: int | None
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        """The log file, beside the run's folder, which only the run itself writes to."""
        return self.folder.parent / "logs" / f"{self.name}.txt"


class RunOutcome(NamedTuple):
    """The result of a run, or the reason why there is none."""

    run: SeedRun
    result: TrainingResult | None
    error: str | None = None
    reused: bool = False


Command = tuple[SeedRun, list[str]]
Report = Callable[[RunOutcome], None]


def run_local(commands: Sequence[Command], jobs: int, report: Report) -> list[RunOutcome]:
    """Run the commands, `jobs` at once; a failed one does not affect the others. Ctrl-C stops all."""
    begun: list[subprocess.Popen[bytes]] = []
    lock, stopping = threading.Lock(), threading.Event()

    def run_one(run: SeedRun, words: list[str]) -> RunOutcome:
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with run.log.open("wb") as log:
            with lock:
                if stopping.is_set():
                    return RunOutcome(run, None, "not started")
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
                begun.append(process)
            code = process.wait()
        return _outcome(run, code)

    outcomes: dict[SeedRun, RunOutcome] = {}
    with interrupted_by_terminate(), ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(run_one, run, words) for run, words in commands}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    outcomes[outcome.run] = outcome
                    report(outcome)
        except BaseException:
            with lock:
                stopping.set()
                for process in begun:
                    process.terminate()
            raise
    return [outcomes[run] for run, _ in commands]


@contextmanager
def interrupted_by_terminate() -> Iterator[None]:
    """Inside, SIGTERM acts as Ctrl-C, so that no run keeps using its folder in the background."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class SlurmTask:
    """One Slurm job; if preempted or timed out, it is requeued and resumes from its checkpoint."""

    def __init__(self, words: list[str], log: str) -> None:
        self.words, self.log = words, log

    def __call__(self) -> int:
        Path(self.log).parent.mkdir(parents=True, exist_ok=True)
        with Path(self.log).open("ab") as log:
            return subprocess.run(self.words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT).returncode

    def checkpoint(self) -> Any:
        return import_module("submitit.helpers").DelayedSubmission(self)


def slurm_parameters(words: Sequence[str]) -> dict[str, Any]:
    """`PARTITION [key=value …]` as submitit takes them."""
    if not words or "=" in words[0]:
        raise ConfigError.expected("--slurm", "PARTITION [key=value …]", "no partition")
    parameters: dict[str, Any] = {**SLURM_DEFAULTS, "slurm_partition": words[0]}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise ConfigError.expected("--slurm", "key=value, such as timeout_min=600", repr(word))
        parameters[key] = int(value) if value.isascii() and value.isdigit() else value
    return parameters


def slurm_executor(folder: Path, parameters: dict[str, Any]) -> Any:
    """The submitit executor; invalid options raise before anything runs."""
    try:
        submitit = import_module("submitit")  # extra `train`
    except ImportError as error:
        hint = "pip install 'ripe-mambaspike[train]'"
        raise InputError.expected("--slurm", "submitit", "none", hint=hint) from error
    try:
        executor = submitit.AutoExecutor(folder / "slurm", cluster=CLUSTER)
        executor.update_parameters(**parameters)
    except (RuntimeError, NameError, ValueError, TypeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError.expected("--slurm", "a cluster that takes these options", f"the error: {reason}") from error
    return executor


def run_slurm(commands: Sequence[Command], executor: Any, report: Report) -> list[RunOutcome]:
    """Submit every command as a job and wait for all. Results are read from the runs' folders."""
    jobs = {run: executor.submit(SlurmTask(words, str(run.log))) for run, words in commands}
    outcomes: dict[SeedRun, RunOutcome] = {}
    try:
        while len(outcomes) < len(jobs):
            for run, job in jobs.items():
                if run not in outcomes and job.done():
                    outcomes[run] = _slurm_outcome(run, job)
                    report(outcomes[run])
            if len(outcomes) < len(jobs):
                time.sleep(POLL_SECONDS)
    except BaseException:
        for run, job in jobs.items():
            if run not in outcomes:
                job.cancel(check=False)
        raise
    return [outcomes[run] for run, _ in commands]


def _slurm_outcome(run: SeedRun, job: Any) -> RunOutcome:
    until = time.monotonic() + FILE_SYSTEM_SECONDS
    while not (run.folder / RESULT_FILE).exists() and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    outcome = _outcome(run, 0)
    if outcome.error is None:
        return outcome
    return RunOutcome(run, None, f"{outcome.error} (job {job.job_id}, {job.state})")


def _outcome(run: SeedRun, code: int) -> RunOutcome:
    try:
        result = read_result(run.folder)
    except WeightsError as error:
        return RunOutcome(run, None, str(error))
    if code == 0 and result is not None:
        return RunOutcome(run, result)
    last = next(iter(last_lines(run.log, 1)), "")
    ended = f"exit code {code}" if code else f"no {RESULT_FILE}"
    return RunOutcome(run, None, f"{ended}: {last}" if last else ended)


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines that a run printed; of a progress bar, its last state."""
    try:
        lines = log.read_bytes()[-4096:].decode("utf-8", "replace").split("\n")
    except OSError:
        return []
    lines = [line.split("\r")[-1].strip() for line in lines]
    return [line.removeprefix("ripe: ") for line in lines if line][-count:]
