"""The memory of a call, and clear errors if there is too little."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ripe_mambaspike.data.clip_cache import free_memory
from ripe_mambaspike.errors import InputError, MemoryNeededError
from ripe_mambaspike.models.cuda_graphs import no_recording
from ripe_mambaspike.models.memory import is_memory_error, readable_bytes

MEBIBYTE = 1 << 20
SMALLER = "reduce --batch, --in-size or --time-steps"


class Memory(NamedTuple):
    """Bytes of tensors."""

    held: int  # before the call: weights, input, optimizer state
    beyond: int  # peak of the call beyond that

    def to_dict(self) -> dict[str, Any]:
        peak = round((self.held + self.beyond) / MEBIBYTE, 3)
        return {"peak_mib": peak, "activation_mib": round(self.beyond / MEBIBYTE, 3)}


def measure_memory(job: Callable[[], object], device: torch.device, held: int) -> Memory:
    """Memory of one call after the first; allocations of other jobs are not counted."""
    with no_recording():  # a recorded pass holds its memory between calls
        job()  # the first call allocates workspaces and optimizer state
        if device.type == "cpu":
            return Memory(held, _peak_on_cpu(job))
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        job()
        torch.cuda.synchronize(device)
        return Memory(held, torch.cuda.max_memory_allocated(device) - before)


def _peak_on_cpu(job: Callable[[], object]) -> int:
    """The peak of PyTorch's live allocations, from the profiler's records."""
    from torch.profiler import ProfilerActivity, profile

    with _silent_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        job()
    results: Any = record.profiler.kineto_results
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Silence stderr, which the profiler's library writes to."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def bytes_of(module: torch.nn.Module, *tensors: torch.Tensor) -> int:
    """Bytes of a network's parameters and buffers, and of further tensors."""
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers(), *tensors))


def expect_memory(needed: int, device: torch.device, what: str) -> None:
    """Raise if the free memory is below a job's minimum."""
    free = free_memory(device)
    if free is not None and needed > free:
        expected = f"at least {readable_bytes(needed)} free on {device.type} for {what}"
        raise InputError.expected("memory", expected, readable_bytes(free), hint=SMALLER)


@contextmanager
def explain_out_of_memory(device: torch.device, what: str) -> Iterator[None]:
    """Inside, running out of memory raises an InputError with the requested and the free amount.

    The MemoryNeededError of a network, which has more details, passes through.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_memory_error(error):
            raise
        free = free_memory(device)
        left = "" if free is None else f" with {readable_bytes(free)} free"
        expected = f"{_requested(str(error))} more on {device.type} for {what}"
        raise InputError.expected("memory", expected, f"out of memory{left}", hint=SMALLER) from error


def lacks_memory(error: Exception) -> bool:
    """Whether this error, as the benchmarks raise it, means that there is too little memory."""
    return isinstance(error, MemoryNeededError) or getattr(error, "field", None) == "memory"


def _requested(message: str) -> str:
    if found := re.search(r"[Tt]ried to allocate ([\d.]+ [KMGT]iB)", message):
        return found[1]
    if found := re.search(r"tried to allocate (\d+) bytes", message):
        return readable_bytes(int(found[1]))
    return "an unknown amount"
