"""How OpenMP threads wait for each other."""

import os
from collections.abc import MutableMapping

SPIN_VARIABLE = "GOMP_SPINCOUNT"  # read by the OpenMP library that ships with PyTorch
WAIT_VARIABLES = (SPIN_VARIABLE, "OMP_WAIT_POLICY")
SPIN_COUNT = "1000"  # about 20 µs


def limit_openmp_spin(environment: MutableMapping[str, str] = os.environ) -> None:
    """Limit how long OpenMP threads spin before they sleep. Call this before torch is imported.

    By default a waiting thread spins for 300,000 iterations (milliseconds). With fewer free cores than threads it
    occupies the core that the others need, and each of the 1,500 parallel loops of a training step takes that long (see
    benchmarks/results/2026-11-16-threads.md). Values set by the user are kept. The setting affects the whole process,
    so only programs call this, never the library.
    """
    if not any(name in environment for name in WAIT_VARIABLES):
        environment[SPIN_VARIABLE] = SPIN_COUNT
