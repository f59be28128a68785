"""How many threads a run computes with.

Sums are divided among threads, so another number of them rounds differently: a run repeats its bits only with the same
number. It is saved in every checkpoint, and a resumed run uses it again, whatever the machine would choose.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

LOG = logging.getLogger("ripe_mambaspike")
VARIABLE = "OMP_NUM_THREADS"


@contextmanager
def run_threads(count: int) -> Iterator[None]:
    """Inside, PyTorch and the operators use so many threads (0: as many as PyTorch chooses)."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resume_threads(recorded: int, report: Callable[[str], None]) -> None:
    """Continue with the number that the run began with, and report where the machine's differs."""
    here = torch.get_num_threads()
    if recorded == here:
        return
    torch.set_num_threads(recorded)
    report(f"computing with {recorded} thread{'s' * (recorded != 1)}, as the run began, instead of {here}")
    if os.environ.get(VARIABLE, "").strip() == str(here):
        LOG.warning(f"{VARIABLE}: expected {recorded}, as the run began, got {here}, which is ignored")
    if recorded > (cores := available_cores()):
        LOG.warning(f"the run began with {recorded} threads, and this machine has {cores} cores: it will be slow")


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
