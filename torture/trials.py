"""The trials: faults injected into a command, and what must be true afterwards."""

import errno
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from torture.forks import COUNT, FAIL_FROM, KILL, CommandResult, Forks
from torture.jobs import Job, State
from torture.power import lose_power

MAX_RESUMES = 20  # of an interrupted run; with more it makes no progress


@dataclass
class Trial:
    """The result of one kind of trial for one command."""

    job: str
    what: str
    tried: int = 0
    ended: int = 0  # results compared with the reference
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def problem(self, sentence: str, result: CommandResult | None = None) -> None:
        details = "" if result is None else f" (exit {result.code}: {result.output.strip()[-700:]})"
        self.problems.append(sentence + details)


class JobTester:
    """A command with its reference result and working folders."""

    def __init__(self, forks: Forks, job: Job, base: Path) -> None:
        self.forks, self.job, self.base = forks, job, base
        self.number = 0
        out = self.new_folder()
        result = forks.run(job.words(out), root=str(out), what=COUNT)
        if result.code != 0:
            raise RuntimeError(f"{job.name} failed without faults: {result.output}")
        self.changes, self.seconds = result.changes, result.seconds
        self.reference = job.state(out)
        again = self.new_folder()
        if forks.run(job.words(again)).code != 0 or job.state(again) != self.reference:
            raise RuntimeError(f"{job.name} is not deterministic: {differing(job.state(again), self.reference)}")

    def new_folder(self) -> Path:
        self.number += 1
        out = self.base / f"{self.job.name.replace(' ', '-')}-{self.number}" / "out"
        out.mkdir(parents=True)
        return out

    def clean(self, out: Path) -> None:
        shutil.rmtree(out.parent, ignore_errors=True)

    def finish(self, out: Path, trial: Trial) -> None:
        """Run the command again until it succeeds; its result must match the reference."""
        result = None
        for _ in range(MAX_RESUMES):
            result = self.forks.run(self.job.words(out))
            if result.code == 0:
                break
            trial.problem("it did not resume after the trial", result)
            break
        if result is not None and result.code == 0:
            trial.ended += 1
            self.compare(out, trial)
        self.clean(out)

    def compare(self, out: Path, trial: Trial) -> None:
        if (state := self.job.state(out)) != self.reference:
            trial.problem(f"it ended otherwise: {differing(state, self.reference)}")
        strays = [path.name for path in out.parent.iterdir() if path != out and not path.name.endswith(".lock")]
        if strays:
            trial.problem(f"{strays[0]} is left beside its folder")


def differing(state: State, reference: State) -> str:
    names = sorted(name for name in state.keys() | reference.keys() if state.get(name) != reference.get(name))
    kinds = ["extra" if name not in reference else "missing" if name not in state else "other bits" for name in names]
    return ", ".join(f"{name} ({kind})" for name, kind in list(zip(names, kinds, strict=True))[:4])


def kill_at_random(tester: JobTester, number: int, random: Random) -> Trial:
    """SIGKILL at random times; a killed run is resumed and killed again."""
    trial = Trial(tester.job.name, "SIGKILL at a random moment")
    out = tester.new_folder()
    while trial.tried < number:
        result = tester.forks.run(tester.job.words(out), kill_after=random.uniform(0.0, 1.05 * tester.seconds))
        trial.tried += result.code == -9
        if result.code == 0:
            trial.ended += 1
            tester.compare(out, trial)
            tester.clean(out)
            out = tester.new_folder()
        elif result.code != -9:
            trial.problem("it refused to resume", result)
            tester.clean(out)
            out = tester.new_folder()
    tester.finish(out, trial)
    return trial


def sample_changes(tester: JobTester, most: int, random: Random) -> list[int]:
    """Indices of changes to stop at: all of them, or a random sample of `most`."""
    every = list(range(1, tester.changes + 1))
    return every if len(every) <= most else sorted(random.sample(every, most))


def kill_at_changes(tester: JobTester, most: int, random: Random) -> Trial:
    """SIGKILL at every single change on disk."""
    trial = Trial(tester.job.name, "SIGKILL at each change on disk")
    for which in sample_changes(tester, most, random):
        out = tester.new_folder()
        tester.forks.run(tester.job.words(out), root=str(out), what=KILL, which=which)
        trial.tried += 1
        tester.finish(out, trial)
    return trial


def failing_disk(tester: JobTester, most: int, random: Random, *, error: int, what: str) -> Trial:
    """From some change on, every change fails; the command must exit with one message, and resume afterwards."""
    trial = Trial(tester.job.name, what)
    for which in sample_changes(tester, most, random) if error == errno.ENOSPC else [1]:
        out = tester.new_folder()
        result = tester.forks.run(tester.job.words(out), root=str(out), what=FAIL_FROM, which=which, error=error)
        trial.tried += 1
        if result.code not in (0, 2) or "Traceback" in result.output:
            trial.problem(f"with the disk full at change {which} it ended badly", result)
        elif result.code == 2 and len([line for line in result.output.splitlines() if line.startswith("ripe: ")]) != 1:
            trial.problem(f"at change {which} it did not refuse in one sentence", result)
        tester.finish(out, trial)
    return trial


def power_losses(tester: JobTester, most: int, random: Random) -> Trial:
    """Killed at a change, and all that was not synced is lost, on both kinds of disks."""
    trial = Trial(tester.job.name, "power loss at a change on disk")
    for which in sample_changes(tester, most, random):
        for folders_too in (False, True):
            _one_power_loss(tester, trial, which, folders_too)
    for folders_too in (False, True):  # after the end: everything reported as written must exist
        _one_power_loss(tester, trial, tester.changes + 1, folders_too)
    return trial


def _one_power_loss(tester: JobTester, trial: Trial, which: int, folders_too: bool) -> None:
    out = tester.new_folder()
    with tempfile.TemporaryDirectory(dir=tester.base) as place:
        copies, log, empty = Path(place) / "copies", Path(place) / "log", Path(place) / "empty"
        copies.mkdir()
        empty.mkdir()
        result = tester.forks.run(
            tester.job.words(out), root=str(out), what=KILL, which=which, log=str(log), copies=str(copies)
        )
        after = out.parent / "after"
        lose_power(empty, log, copies, out, after, folders_too=folders_too)
    shutil.rmtree(out)
    after.replace(out)
    trial.tried += 1
    if result.code == 0:  # it reported success
        trial.ended += 1
        tester.compare(out, trial)
        tester.clean(out)
    else:
        tester.finish(out, trial)


def concurrent_runs(tester: JobTester, processes: int, times: int, random: Random) -> Trial:
    """Several runs of a command on one folder: one does the work, the others wait, find it done, or exit with 2."""
    trial = Trial(tester.job.name, f"{processes} at once on one folder")
    for _ in range(times):
        out = tester.new_folder()
        processes_started = []
        for _ in range(processes):
            processes_started.append(tester.forks.start(tester.job.words(out)))
            time.sleep(random.uniform(0, 0.3) * tester.seconds)
        ends = [tester.forks.wait(process) for process in processes_started]
        trial.tried += 1
        if not any(result.code == 0 for result in ends):
            trial.problem("none of them ended well", ends[0])
        for result in ends:
            if result.code not in (0, 2) or "Traceback" in result.output:
                trial.problem("one of them ended badly", result)
        tester.finish(out, trial)
    return trial


def clock_jumps(tester: JobTester, times: int) -> Trial:
    """A wall clock that jumps by up to 30 days, back and forth, at every call."""
    trial = Trial(tester.job.name, "a clock that jumps")
    for _ in range(times):
        out = tester.new_folder()
        result = tester.forks.run(tester.job.words(out), jump=86_400 * 30)
        trial.tried += 1
        if result.code != 0:
            trial.problem("it did not end well", result)
        tester.finish(out, trial)
    return trial


def timed(trials: Iterator[Trial]) -> Iterator[Trial]:
    began = time.monotonic()
    for trial in trials:
        trial.seconds, began = time.monotonic() - began, time.monotonic()
        yield trial
