"""The trials: what is done to a command, and what must be true afterwards."""

import errno
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from torture.forks import COUNT, FAIL_FROM, KILL, Ended, Forks
from torture.jobs import Job, State
from torture.power import lose_power

MAX_RESUMES = 20  # of a run that was stopped; more, and it does not get on


@dataclass
class Trial:
    """What one kind of trial came to for one command."""

    job: str
    what: str
    tried: int = 0
    ended: int = 0  # ends compared with the reference
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def problem(self, sentence: str, ended: Ended | None = None) -> None:
        said = "" if ended is None else f" (exit {ended.code}: {ended.output.strip()[-700:]})"
        self.problems.append(sentence + said)


class Bench:
    """A command with its reference, and folders to work in."""

    def __init__(self, forks: Forks, job: Job, base: Path) -> None:
        self.forks, self.job, self.base = forks, job, base
        self.number = 0
        out = self.fresh()
        ended = forks.run(job.words(out), root=str(out), what=COUNT)
        if ended.code != 0:
            raise RuntimeError(f"{job.name} does not even run: {ended.output}")
        self.changes, self.seconds = ended.changes, ended.seconds
        self.reference = job.state(out)
        again = self.fresh()
        if forks.run(job.words(again)).code != 0 or job.state(again) != self.reference:
            raise RuntimeError(
                f"{job.name} does not give the same bits twice: {differing(job.state(again), self.reference)}"
            )

    def fresh(self) -> Path:
        self.number += 1
        out = self.base / f"{self.job.name.replace(' ', '-')}-{self.number}" / "out"
        out.mkdir(parents=True)
        return out

    def clean(self, out: Path) -> None:
        shutil.rmtree(out.parent, ignore_errors=True)

    def finish(self, out: Path, trial: Trial) -> None:
        """Run the command until it ends well; its end must be the reference's."""
        ended = None
        for _ in range(MAX_RESUMES):
            ended = self.forks.run(self.job.words(out))
            if ended.code == 0:
                break
            trial.problem("it did not go on after the trial", ended)
            break
        if ended is not None and ended.code == 0:
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


def kills(bench: Bench, number: int, random: Random) -> Trial:
    """SIGKILL at random moments; a run that was killed goes on, and is killed again."""
    trial = Trial(bench.job.name, "SIGKILL at a random moment")
    out = bench.fresh()
    while trial.tried < number:
        ended = bench.forks.run(bench.job.words(out), kill_after=random.uniform(0.0, 1.05 * bench.seconds))
        trial.tried += ended.code == -9
        if ended.code == 0:
            trial.ended += 1
            bench.compare(out, trial)
            bench.clean(out)
            out = bench.fresh()
        elif ended.code != -9:
            trial.problem("it refused to go on", ended)
            bench.clean(out)
            out = bench.fresh()
    bench.finish(out, trial)
    return trial


def points(bench: Bench, most: int, random: Random) -> list[int]:
    """Changes to stop at: all of them, or so many."""
    every = list(range(1, bench.changes + 1))
    return every if len(every) <= most else sorted(random.sample(every, most))


def kill_at_changes(bench: Bench, most: int, random: Random) -> Trial:
    """SIGKILL at every single change on disk."""
    trial = Trial(bench.job.name, "SIGKILL at each change on disk")
    for which in points(bench, most, random):
        out = bench.fresh()
        bench.forks.run(bench.job.words(out), root=str(out), what=KILL, which=which)
        trial.tried += 1
        bench.finish(out, trial)
    return trial


def failing_disk(bench: Bench, most: int, random: Random, *, error: int, what: str) -> Trial:
    """From a change on, every change fails; the command must refuse in one sentence, and go on when it is mended."""
    trial = Trial(bench.job.name, what)
    for which in points(bench, most, random) if error == errno.ENOSPC else [1]:
        out = bench.fresh()
        ended = bench.forks.run(bench.job.words(out), root=str(out), what=FAIL_FROM, which=which, error=error)
        trial.tried += 1
        if ended.code not in (0, 2) or "Traceback" in ended.output:
            trial.problem(f"with the disk full at change {which} it ended badly", ended)
        elif ended.code == 2 and len([line for line in ended.output.splitlines() if line.startswith("ripe: ")]) != 1:
            trial.problem(f"at change {which} it did not refuse in one sentence", ended)
        bench.finish(out, trial)
    return trial


def power_losses(bench: Bench, most: int, random: Random) -> Trial:
    """Killed at a change, and all that was not synced is lost, on both kinds of disks."""
    trial = Trial(bench.job.name, "power loss at a change on disk")
    for which in points(bench, most, random):
        for folders_too in (False, True):
            _one_power_loss(bench, trial, which, folders_too)
    for folders_too in (False, True):  # after the end: what was said to be written is there
        _one_power_loss(bench, trial, bench.changes + 1, folders_too)
    return trial


def _one_power_loss(bench: Bench, trial: Trial, which: int, folders_too: bool) -> None:
    out = bench.fresh()
    with tempfile.TemporaryDirectory(dir=bench.base) as place:
        copies, log, empty = Path(place) / "copies", Path(place) / "log", Path(place) / "empty"
        copies.mkdir()
        empty.mkdir()
        ended = bench.forks.run(
            bench.job.words(out), root=str(out), what=KILL, which=which, log=str(log), copies=str(copies)
        )
        after = out.parent / "after"
        lose_power(empty, log, copies, out, after, folders_too=folders_too)
    shutil.rmtree(out)
    after.replace(out)
    trial.tried += 1
    if ended.code == 0:  # it said that it had ended
        trial.ended += 1
        bench.compare(out, trial)
        bench.clean(out)
    else:
        bench.finish(out, trial)


def together(bench: Bench, processes: int, times: int, random: Random) -> Trial:
    """Several of the same command on one folder: one does the work, the others wait, find it done, or refuse."""
    trial = Trial(bench.job.name, f"{processes} at once on one folder")
    for _ in range(times):
        out = bench.fresh()
        begun = []
        for _ in range(processes):
            begun.append(bench.forks.start(bench.job.words(out)))
            time.sleep(random.uniform(0, 0.3) * bench.seconds)
        ends = [bench.forks.wait(process) for process in begun]
        trial.tried += 1
        if not any(ended.code == 0 for ended in ends):
            trial.problem("none of them ended well", ends[0])
        for ended in ends:
            if ended.code not in (0, 2) or "Traceback" in ended.output:
                trial.problem("one of them ended badly", ended)
        bench.finish(out, trial)
    return trial


def clock_jumps(bench: Bench, times: int) -> Trial:
    """A wall clock that jumps by up to days, back and forth, at every look."""
    trial = Trial(bench.job.name, "a clock that jumps")
    for _ in range(times):
        out = bench.fresh()
        ended = bench.forks.run(bench.job.words(out), jump=86_400 * 30)
        trial.tried += 1
        if ended.code != 0:
            trial.problem("it did not end well", ended)
        bench.finish(out, trial)
    return trial


def timed(trials: Iterator[Trial]) -> Iterator[Trial]:
    began = time.monotonic()
    for trial in trials:
        trial.seconds, began = time.monotonic() - began, time.monotonic()
        yield trial
