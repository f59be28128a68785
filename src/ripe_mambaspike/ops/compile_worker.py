"""A process that compiles kernels into Triton's cache, without a GPU: `python -m ripe_mambaspike.ops.compile_worker`.

Its argument is the GPU to compile for, as JSON. It reads one kernel a line, as JSON by `compile_ahead`, and answers
each with a line. A kernel that it cannot compile is left to the process that launches it.
"""

import contextlib
import importlib
import json
import sys
from typing import Any

from ripe_mambaspike.ops.compile_ahead import settle_key, switched
from ripe_mambaspike.ops.triton_launch import Synchronous
from ripe_mambaspike.own_modules import import_own_modules


class Target:
    """Stands in for Triton's driver, which would need a GPU."""

    def __init__(self, backend: str, arch: Any, warp_size: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget(backend, arch, warp_size)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0


def compile_kernel(module: str, name: str, specialization: str, switch: str | None) -> None:
    found = getattr(importlib.import_module(module), name)
    function = found.kernel if isinstance(found, Synchronous) else found
    settle_key(function)
    with switched(switch):
        function.preload(specialization)


def main() -> None:
    from triton.runtime import driver

    driver.set_active(Target(**json.loads(sys.argv[1])))
    with contextlib.suppress(Exception):
        import_own_modules()
    for line in sys.stdin:
        task = json.loads(line)
        with contextlib.suppress(Exception):
            compile_kernel(task["module"], task["name"], task["specialization"], task["switch"])
        print("done", flush=True)


if __name__ == "__main__":
    main()
