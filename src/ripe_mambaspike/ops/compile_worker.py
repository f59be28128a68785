"""A process that compiles kernels into Triton's cache, without a GPU: `python -m ripe_mambaspike.ops.compile_worker`.

Its argument is the GPU to compile for, as JSON. It reads one kernel a line, as JSON by `compile_ahead`, and answers
each with a line. A kernel that it cannot compile is left to the process that launches it.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from ripe_mambaspike.ops.compile_ahead import settle_key
from ripe_mambaspike.ops.triton_launch import NO_WGMMA_VARIABLE, Synchronous


class CompilingDriver:
    """Stands in for Triton's driver, which would need a GPU."""

    def __init__(self, backend: str, arch: Any, warp_size: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget(backend, arch, warp_size)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0


def compile_kernel(module: str, name: str, specialization: str, no_wgmma: str | None) -> None:
    found = getattr(importlib.import_module(module), name)
    function = found.kernel if isinstance(found, Synchronous) else found
    settle_key(function)
    with no_wgmma_as(no_wgmma):
        function.preload(specialization)


@contextlib.contextmanager
def no_wgmma_as(value: str | None) -> Iterator[None]:
    """Inside, NO_WGMMA_VARIABLE has this value. For a process of one thread."""
    before = os.environ.get(NO_WGMMA_VARIABLE)
    _set(value)
    try:
        yield
    finally:
        _set(before)


def _set(value: str | None) -> None:
    if value is None:
        os.environ.pop(NO_WGMMA_VARIABLE, None)
    else:
        os.environ[NO_WGMMA_VARIABLE] = value


def compile_from_stdin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides when it ends
    from triton.runtime import driver

    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # whatever is printed is no answer
        driver.set_active(CompilingDriver(**json.loads(sys.argv[1])))
        for line in sys.stdin:
            task = json.loads(line)
            with contextlib.suppress(Exception):
                compile_kernel(task["module"], task["name"], task["specialization"], task["no_wgmma"])
            print("done", file=answers)


if __name__ == "__main__":
    compile_from_stdin()
