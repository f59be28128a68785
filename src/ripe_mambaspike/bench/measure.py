"""Times and memory of several jobs; one that must not fail, and others that may run out of memory."""

from typing import Any, NamedTuple

import torch

from ripe_mambaspike.bench.memory import Memory, explain_out_of_memory, measure_memory
from ripe_mambaspike.bench.timing import Job, Times, time_jobs
from ripe_mambaspike.errors import InputError, MemoryNeededError

OURS = ("ours", "captured")  # what has no excuse


class Subject(NamedTuple):
    job: Job
    held: int  # bytes of its weights, input and optimizer
    memory_of: Job | None = None  # what to measure memory on, where the job hides its own (a captured graph)


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
    """Every subject, used up; and the times of jobs beside them, on the CPU in turns with them."""
    found: dict[str, Measured | Failed] = {}
    beside = beside or {}
    if device.type == "cpu":
        with explain_out_of_memory(device, " and ".join(subjects)):
            memory = {name: measure_memory(_memory_job(s), device, s.held) for name, s in subjects.items()}
            times = time_jobs({**{name: s.job for name, s in subjects.items()}, **beside}, device, repeats)
        found = {name: Measured(times[name], memory[name]) for name in subjects}
        return found, {name: times[name] for name in beside}
    for name in list(subjects):
        subject = subjects.pop(name)  # what it holds goes when it is done
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
    """How many times faster, None where either was not measured."""
    if not isinstance(slow, Measured) or not isinstance(fast, Measured):
        return None
    return round(slow.times.median / fast.times.median, 3)
