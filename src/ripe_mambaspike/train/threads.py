"""The number of threads of a run.

Sums are divided among threads, so another number of them rounds differently: a run is bit-reproducible only with the
same number. It is saved in every checkpoint, and a resumed run uses it again, whatever the machine's default.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ripe_mambaspike.ops.cores import available_cores

LOG = logging.getLogger("ripe_mambaspike")
VARIABLE = "OMP_NUM_THREADS"


@contextmanager
def run_threads(count: int) -> Iterator[None]:
    """Inside, PyTorch and the operators use this many threads (0: PyTorch's default)."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resume_threads(recorded: int, report: Callable[[str], None]) -> None:
    """Continue with the number that the run started with, and report if the machine's default differs."""
    here = torch.get_num_threads()
    if recorded == here:
        return
    torch.set_num_threads(recorded)
    report(f"computing with {recorded} thread{'s' * (recorded != 1)}, as the run began, instead of {here}")
    if os.environ.get(VARIABLE, "").strip() == str(here):
        LOG.warning(f"{VARIABLE}: expected {recorded}, as the run began, got {here}, which is ignored")
    if recorded > (cores := available_cores()):
        LOG.warning(f"the run began with {recorded} threads, and this machine has {cores} cores: it will be slow")
