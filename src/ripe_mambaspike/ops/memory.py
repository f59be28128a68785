"""Freed memory kept for the next tensor: on a CPU, fresh pages cost more than the arithmetic that fills them."""

import ctypes
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of the C library's options
MAX_MMAP_THRESHOLD = 32 * 2**20  # the most it accepts as MMAP_THRESHOLD


def keep_freed_memory(kept: int = 2**30) -> bool:
    """Let this process keep up to `kept` bytes it has freed instead of handing them back to the system.

    Glibc alone has the option; elsewhere nothing changes and the answer is False. It holds for the whole process, so
    a program decides on it, never a library: the command line and the benchmarks do.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_THRESHOLD, MAX_MMAP_THRESHOLD) and mallopt(TRIM_THRESHOLD, kept))
