"""How many threads a run computes with.

Sums are divided among threads, so another number of them rounds otherwise: a run repeats its bits with one number. It
is written into every checkpoint, and a run that goes on uses it again, whatever the machine would choose.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

LOG = logging.getLogger("ripe_mambaspike")
VARIABLE = "OMP_NUM_THREADS"


@contextmanager
def run_threads(wanted: int) -> Iterator[None]:
    """Inside, PyTorch and the operators use so many threads (0: as many as PyTorch chooses); then as many as before."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resume_threads(recorded: int | None, says: Callable[[str], None]) -> None:
    """Go on with the number that the run was begun with; what differs here is told."""
    here = torch.get_num_threads()
    if recorded is None or recorded == here:
        return
    torch.set_num_threads(recorded)
    says(f"computing with {_threads(recorded)}, as the run was begun; here it would be {_threads(here)}")
    if os.environ.get(VARIABLE, "").strip() == str(here):
        LOG.warning(f"{VARIABLE}: expected {recorded}, as the run was begun, got {here}, which is not used")
    if recorded > (cores := available_cores()):
        LOG.warning(f"the run was begun with {recorded} threads and {cores} cores are here: it will be slow")


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"
