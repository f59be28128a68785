"""How long a call takes: median and 95th percentile of many, never the first ones."""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

WARM_UP = 2  # calls that are not counted: they compile, choose algorithms and touch fresh memory

Job = Callable[[], object]


class Times(NamedTuple):
    """Of one job, in milliseconds."""

    median: float
    p95: float
    calls: int

    def to_dict(self) -> dict[str, Any]:
        return {"median_ms": round(self.median, 5), "p95_ms": round(self.p95, 5), "calls": self.calls}


def summarize(milliseconds: list[float]) -> Times:
    """The 95th percentile is a value that was measured: of few calls the slowest."""
    ordered = sorted(milliseconds)
    return Times(statistics.median(ordered), ordered[math.ceil(0.95 * len(ordered)) - 1], len(ordered))


def time_jobs(jobs: dict[str, Job], device: torch.device, repeats: int, warm_up: int = WARM_UP) -> dict[str, Times]:
    """Each job `repeats` times after its warm-up.

    On the CPU the jobs take turns, so that a noisy machine disturbs them alike; on a CUDA device one follows the other,
    each in memory of its own, timed by events on the device.
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
