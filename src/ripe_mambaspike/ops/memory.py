"""Reuse freed memory: on a CPU, fresh pages cost more than the arithmetic that fills them."""

import ctypes
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt
MAX_MMAP_THRESHOLD = 32 * 2**20  # the largest MMAP_THRESHOLD it accepts


def keep_freed_memory(kept: int = 2**30) -> bool:
    """Let this process keep up to `kept` freed bytes instead of returning them to the system.

    Only glibc has the option; elsewhere nothing changes and the result is False. It affects the whole process, so only
    programs set it (the command line and the benchmarks), never the library.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_THRESHOLD, MAX_MMAP_THRESHOLD) and mallopt(TRIM_THRESHOLD, kept))
