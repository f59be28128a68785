"""Time and memory of several calls on one device.

Times are the median and the 95th percentile of many calls after a warm-up. Our own paths must not fail; the others may
run out of memory, which is then reported in their row.
"""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ripe_mambaspike.bench.memory import Memory, explain_out_of_memory, measure_memory
from ripe_mambaspike.errors import InputError, MemoryNeededError

OURS = ("ours", "captured")  # paths that must not fail
WARM_UP = 2  # calls that are not timed: they compile, choose algorithms and allocate memory

Job = Callable[[], object]


class Times(NamedTuple):
    """Times of one job, in milliseconds."""

    median: float
    p95: float
    calls: int

    def to_dict(self) -> dict[str, Any]:
        return {"median_ms": round(self.median, 5), "p95_ms": round(self.p95, 5), "calls": self.calls}


def summarize(milliseconds: list[float]) -> Times:
    """The 95th percentile is a measured value: with few calls, the slowest."""
    ordered = sorted(milliseconds)
    return Times(statistics.median(ordered), ordered[math.ceil(0.95 * len(ordered)) - 1], len(ordered))


def time_jobs(jobs: dict[str, Job], device: torch.device, repeats: int, warm_up: int = WARM_UP) -> dict[str, Times]:
    """Each job `repeats` times after its warm-up.

    On the CPU the jobs alternate, so that noise affects them alike; on a CUDA device they run one after the other, each
    with its own memory, timed by CUDA events.
    """
    if device.type == "cuda":
        return {name: summarize(_on_cuda(job, device, repeats, warm_up)) for name, job in jobs.items()}
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + warm_up):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn >= warm_up:
                taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: summarize(values) for name, values in taken.items()}


def _on_cuda(job: Job, device: torch.device, repeats: int, warm_up: int) -> list[float]:
    for _ in range(warm_up):
        job()
    taken = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        job()
        end.record()
        torch.cuda.synchronize(device)
        taken.append(float(start.elapsed_time(end)))
    return taken


class Subject(NamedTuple):
    job: Job
    held: int  # bytes of its weights, input and optimizer
    memory_of: Job | None = None  # measure memory on this job instead, if the job hides its own (a captured graph)


class Measured(NamedTuple):
    times: Times
    memory: Memory

    def to_dict(self) -> dict[str, Any]:
        return {**self.times.to_dict(), **self.memory.to_dict()}


class Failed(NamedTuple):
    """Why there is no measurement."""

    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"error": self.reason}


def measure(
    subjects: dict[str, Subject], device: torch.device, repeats: int, beside: dict[str, Job] | None = None
) -> tuple[dict[str, Measured | Failed], dict[str, Times]]:
    """Measure and release every subject; also the times of jobs `beside` them, on the CPU alternately."""
    found: dict[str, Measured | Failed] = {}
    beside = beside or {}
    if device.type == "cpu":
        with explain_out_of_memory(device, " and ".join(subjects)):
            memory = {name: measure_memory(_memory_job(s), device, s.held) for name, s in subjects.items()}
            times = time_jobs({**{name: s.job for name, s in subjects.items()}, **beside}, device, repeats)
        found = {name: Measured(times[name], memory[name]) for name in subjects}
        return found, {name: times[name] for name in beside}
    for name in list(subjects):
        subject = subjects.pop(name)  # so that its memory is freed when it is done
        try:
            with explain_out_of_memory(device, name):
                used = measure_memory(_memory_job(subject), device, subject.held)
                found[name] = Measured(time_jobs({name: subject.job}, device, repeats)[name], used)
        except (InputError, MemoryNeededError) as error:
            if name in OURS:
                raise
            found[name] = Failed(str(error))
        del subject
        torch.cuda.empty_cache()
    return found, time_jobs(beside, device, repeats)


def _memory_job(subject: Subject) -> Job:
    return subject.memory_of or subject.job


def ratio(slow: Measured | Failed | None, fast: Measured | Failed | None) -> float | None:
    """The speed-up; None if either was not measured."""
    if not isinstance(slow, Measured) or not isinstance(fast, Measured):
        return None
    return round(slow.times.median / fast.times.median, 3)
