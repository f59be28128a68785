"""Kernels compiled side by side, in several processes, before the first pass launches them.

Triton compiles a kernel when it is first launched, one after the other: a training step has two hundred. Here a pass
runs once without them, only to see which it would launch; then processes (`compile_worker.py`) compile those that
Triton's cache on disk does not have. A kernel that could not be compiled this way is compiled when it is launched.
"""

import contextlib
import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ripe_mambaspike.ops.triton_launch import NO_WGMMA_VARIABLE

LOG = logging.getLogger("ripe_mambaspike")
MIN_KERNELS = 8  # with fewer, starting a process takes as long
KERNELS_PER_PROCESS = 4  # at least
MAX_PROCESSES = 32
LOCK = "ripe-compile.lock"


class Kernel(NamedTuple):
    """A kernel for certain types and constants of its arguments."""

    module: str
    name: str
    specialization: str  # JSON by Triton
    switch: str | None  # the value of NO_WGMMA_VARIABLE while it is compiled
    source: Any  # Triton's ASTSource
    options: Any


def compile_ahead(run: Callable[[], object], processes: int | None = None) -> int:
    """Compile the kernels that `run` launches and that are not compiled yet; returns how many were missing.

    `run` is called once without these kernels, so all that it computes, and what it leaves behind, is meaningless: the
    caller restores it. No address may depend on data. `processes`: by default as many as there are cores.
    """
    try:
        from triton import knobs
        from triton.runtime import driver
        from triton.runtime.jit import JITFunction
    except ImportError:
        return 0  # an older Triton
    if knobs.runtime.interpret or knobs.runtime.jit_cache_hook is not None:
        return 0
    found: dict[Any, Kernel] = {}
    caller = threading.get_ident()

    def note(*, key: Any, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        # Another thread's kernel is compiled and launched, but for the threads of PyTorch's backward pass.
        mine = threading.get_ident() == caller or isinstance(threading.current_thread(), threading._DummyThread)
        if mine and isinstance(fn.jit_function, JITFunction):
            switch = os.environ.get(NO_WGMMA_VARIABLE)
            with contextlib.suppress(Exception):  # it is compiled when it is launched
                found.setdefault((fn.module, fn.name, str(key), switch), _kernel(fn, compile, switch))
        return mine

    knobs.runtime.jit_cache_hook = note
    try:
        with contextlib.suppress(Exception):  # whatever it is, the pass itself raises it again
            run()
    finally:
        knobs.runtime.jit_cache_hook = None
    if len(found) < MIN_KERNELS:
        return 0
    with _one_at_a_time(Path(knobs.cache.dir)):
        missing = [kernel for kernel in found.values() if not _is_cached(kernel)]
        if len(missing) >= MIN_KERNELS:
            limit = min(len(os.sched_getaffinity(0)), MAX_PROCESSES) if processes is None else processes
            count = max(1, min(limit, len(missing) // KERNELS_PER_PROCESS))
            LOG.info(f"compiling {len(missing)} kernels in {count} process{'es' * (count > 1)}")
            _compile(missing, vars(driver.active.get_current_target()), count)
    return len(missing)


def _kernel(fn: Any, compile: dict[str, Any], switch: str | None) -> Kernel:
    from triton.compiler import ASTSource

    function, specialization = fn.jit_function, compile["specialization_data"]
    settle_key(function)
    source = ASTSource(function, compile["signature"], compile["constants"], compile["configs"][0])
    backend = function.device_caches[compile["device"]][3]
    given = {name: _as_tuple(value) for name, value in json.loads(specialization)["options"].items()}
    return Kernel(fn.module, fn.name, specialization, switch, source, backend.parse_options(given))


def settle_key(function: Any) -> None:
    """Compute the key of a kernel's source after the keys of those that it calls.

    The key has the constants of a called kernel only if that one's key is known, so that it would depend on the order
    in which kernels are launched, and two processes would not find each other's.
    """
    names, known = function.fn.__code__.co_names, function.fn.__globals__
    for name in names:
        called = known.get(name)
        if called is not function and isinstance(called, type(function)):
            settle_key(called)
    function.cache_key  # noqa: B018, computed here


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _is_cached(kernel: Kernel) -> bool:
    """Whether Triton's cache on disk has it. The names are Triton's, and may change with it."""
    from triton.compiler.compiler import get_cache_invalidating_env_vars, get_cache_key, make_backend
    from triton.runtime import driver
    from triton.runtime.cache import get_cache_manager

    try:
        with switched(kernel.switch):
            backend, variables = make_backend(driver.active.get_current_target()), get_cache_invalidating_env_vars()
        key = get_cache_key(kernel.source, backend, kernel.options, variables)
        name = f"{kernel.source.name[:150]}.json"
        group = get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).get_group(name)
    except (AttributeError, TypeError, OSError, ValueError):
        return False
    return bool(group and name in group)


@contextlib.contextmanager
def switched(value: str | None) -> Iterator[None]:
    """NO_WGMMA_VARIABLE has this value inside."""
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


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Processes that start together take turns: the next one finds most kernels compiled."""
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(kernels: Iterable[Kernel], target: dict[str, Any], count: int) -> None:
    """Hand the kernels to processes, one by one to whichever is free."""
    waiting: SimpleQueue[str] = SimpleQueue()
    for kernel in kernels:
        waiting.put(json.dumps(kernel._asdict() | {"source": None, "options": None}))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "ripe_mambaspike.ops.compile_worker", json.dumps(target)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "bufsize": 1}
    workers: list[subprocess.Popen[str]] = []
    try:
        with ThreadPoolExecutor(count) as threads:
            try:
                for _ in range(count):
                    workers.append(subprocess.Popen(command, text=True, env=environment, **pipes))
                list(threads.map(lambda worker: _feed(worker, waiting), workers))
            finally:  # also on Ctrl-C: the threads end when their processes do
                for worker in workers:
                    worker.kill()
    except OSError as error:
        LOG.warning(f"kernels are compiled one by one: no process can be started ({error.strerror or error})")
    for worker in workers:
        worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            with contextlib.suppress(OSError):  # what the process did not read
                pipe.close()  # type: ignore[union-attr]


def _feed(worker: "subprocess.Popen[str]", waiting: "SimpleQueue[str]") -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    with contextlib.suppress(Empty, OSError):  # a process that died; the others go on
        while True:
            worker.stdin.write(waiting.get_nowait() + "\n")  # by lines, without a flush
            if not worker.stdout.readline():
                return
