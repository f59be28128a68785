"""How the threads of one process wait for each other."""

import os
from collections.abc import MutableMapping

SPIN_VARIABLE = "GOMP_SPINCOUNT"  # of the OpenMP library that PyTorch brings
WAIT_VARIABLES = (SPIN_VARIABLE, "OMP_WAIT_POLICY")
SPIN_COUNT = "1000"  # some 20 µs


def limit_openmp_spin(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let a thread that waits for the others sleep soon; to be called before torch is imported.

    By default it keeps its core busy for 300,000 turns, milliseconds, hoping that the others end just now. Where there
    are fewer free cores than threads, that core is the one that the others need: every parallel loop, and a training
    step has 1,500, then takes as long as the waiting (see benchmarks/results/2026-11-16-threads.md). What a user has
    chosen stays. It holds for the whole process, so a program decides on it, never a library.
    """
    if not any(name in environment for name in WAIT_VARIABLES):
        environment[SPIN_VARIABLE] = SPIN_COUNT
