"""Kernels compiled in parallel, in several processes, before the first pass launches them.

Triton compiles each kernel at its first launch, one at a time: a training step has two hundred. Here a pass runs once
without those that are not compiled yet, only to see which they are; then processes (`compile_worker.py`) compile those
that Triton's cache on disk does not have. Whatever fails on the way costs time only: the kernels that are still missing
are compiled when they are launched. RIPE_COMPILE_PROCESSES=N limits the processes, and 0 turns all of this off.
"""

import contextlib
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import torch

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.ops.backend import choice
from ripe_mambaspike.ops.cores import available_cores
from ripe_mambaspike.ops.triton_launch import NO_WGMMA_VARIABLE

LOG = logging.getLogger("ripe_mambaspike")
VARIABLE = "RIPE_COMPILE_PROCESSES"
MIN_KERNELS = 8  # with fewer, starting a process takes as long
KERNELS_PER_PROCESS = 4  # at least
MAX_PROCESSES = 16  # each takes about 350 MB
PACKAGE = "ripe_mambaspike."  # other kernels are launched and compiled as ever
LOCK = "ripe-compile.lock"


class Kernel(NamedTuple):
    """A kernel for certain types and constants of its arguments."""

    module: str
    name: str
    specialization: str  # JSON by Triton
    no_wgmma: str | None  # the value of NO_WGMMA_VARIABLE while it is compiled
    source: Any  # Triton's ASTSource
    options: Any


def compile_ahead(run: Callable[[], object], restore: Callable[[], object] = lambda: None) -> int:
    """Compile the kernels of a pass that are not compiled yet; returns how many there were.

    `run` is called once without these kernels. All that it computes and leaves behind is then meaningless; `restore`
    undoes it. No address may depend on data.
    """
    try:
        found = _find(run)
    finally:
        restore()
    return _compile_missing(found) if found else 0


def _find(run: Callable[[], object]) -> list[Kernel]:
    """The kernels that a pass launches and that this process has not compiled, by running it without them."""
    try:
        from triton import knobs
    except ImportError:  # none, or an older one
        return []
    off = choice() == "off" or _max_processes() == 0
    if off or knobs.runtime.interpret or knobs.runtime.jit_cache_hook is not None:
        return []
    found: dict[Any, Kernel] = {}
    caller = threading.get_ident()

    def record(*, key: Any, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Whether Triton should neither compile nor launch this kernel."""
        if threading.get_ident() != caller or not fn.module.startswith(PACKAGE):
            return False
        no_wgmma = os.environ.get(NO_WGMMA_VARIABLE)
        with contextlib.suppress(Exception):  # it is compiled when it is launched
            found.setdefault((fn.module, fn.name, str(key), no_wgmma), _kernel(fn, compile, no_wgmma))
        return True

    knobs.runtime.jit_cache_hook = record
    try:
        # In this thread, backward too: PyTorch's own thread for it may be running another network's.
        with contextlib.suppress(Exception), torch.autograd.set_multithreading_enabled(False):
            run()  # whatever it raises, the pass itself raises it again
    finally:
        knobs.runtime.jit_cache_hook = None
    return list(found.values())


def _compile_missing(found: Sequence[Kernel]) -> int:
    missing = list(found)
    try:
        from triton import knobs
        from triton.runtime import driver

        missing = [kernel for kernel in missing if not _is_cached(kernel)]
        if len(missing) < MIN_KERNELS:
            return len(missing)
        with _one_at_a_time(Path(knobs.cache.dir)):
            missing = [kernel for kernel in missing if not _is_cached(kernel)]  # others may have compiled them
            count = max(1, min(_max_processes(), len(missing) // KERNELS_PER_PROCESS))
            if len(missing) >= MIN_KERNELS:
                LOG.warning(f"compiling {len(missing)} kernels in {count} process{'es' * (count > 1)}, once")
                _compile(missing, vars(driver.active.get_current_target()), count)
    except Exception as error:  # any: it only saves time
        LOG.warning(f"kernels are compiled one at a time ({str(error) or repr(error)})")
    return len(missing)


def _max_processes() -> int:
    """Not by OMP_NUM_THREADS: the runs of a study share the cores, but they compile by turns."""
    given = os.environ.get(VARIABLE)
    if not given:
        return min(available_cores(), MAX_PROCESSES)
    if not given.isdecimal():
        raise ConfigError.expected(VARIABLE, "a number of processes, 0 for none", repr(given))
    return int(given)


def _kernel(fn: Any, compile: dict[str, Any], no_wgmma: str | None) -> Kernel:
    from triton.compiler import ASTSource

    function, specialization = fn.jit_function, compile["specialization_data"]
    settle_key(function)
    source = ASTSource(function, compile["signature"], compile["constants"], compile["configs"][0])
    backend = function.device_caches[compile["device"]][3]
    given = {name: _as_tuple(value) for name, value in json.loads(specialization)["options"].items()}
    return Kernel(fn.module, fn.name, specialization, no_wgmma, source, backend.parse_options(given))


def settle_key(function: Any) -> None:
    """Compute the cache key of a kernel's source after the keys of those that it calls.

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
    """Whether Triton's cache on disk has it. The names are Triton's; with a version that has others this raises."""
    from triton.compiler.compiler import get_cache_key, make_backend
    from triton.runtime import driver
    from triton.runtime.cache import get_cache_manager

    backend = make_backend(driver.active.get_current_target())
    key = get_cache_key(kernel.source, backend, kernel.options, _key_variables(kernel.no_wgmma))
    name = f"{kernel.source.name[:150]}.json"
    group = get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).get_group(name)
    return bool(group and name in group)


def _key_variables(no_wgmma: str | None) -> dict[str, str]:
    """What Triton's keys have of the environment, with this value of NO_WGMMA_VARIABLE.

    The environment itself stays: another thread may be compiling by it.
    """
    from triton.compiler.compiler import get_cache_invalidating_env_vars

    found = {name: value for name, value in get_cache_invalidating_env_vars().items() if name != NO_WGMMA_VARIABLE}
    return found | ({NO_WGMMA_VARIABLE: str(no_wgmma in ("1", "true", "on")).lower()} if no_wgmma else {})


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Processes that start together take turns: a later one finds compiled what it shares with the first."""
    import fcntl

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a file system without locks
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / LOCK).open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                LOG.warning("waiting for another process that compiles kernels")
                fcntl.flock(file, fcntl.LOCK_EX)
            stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a process that was started meanwhile has it open, too
        yield


def _compile(kernels: Sequence[Kernel], target: dict[str, Any], count: int) -> None:
    """Hand the kernels to processes, one by one to whichever is free."""
    waiting: SimpleQueue[str] = SimpleQueue()
    for kernel in kernels:
        waiting.put(json.dumps(kernel._asdict() | {"source": None, "options": None}))
    own = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "ripe_mambaspike.ops.compile_worker", json.dumps(target)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "bufsize": 1}
    workers: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="ripe-compile-") as folder, ThreadPoolExecutor(count) as threads:
        environment = os.environ | own | {"TMPDIR": folder}  # where a compiler that is killed leaves its files
        try:
            for _ in range(count):
                workers.append(subprocess.Popen(command, text=True, env=environment, process_group=0, **pipes))
            ended = list(threads.map(lambda worker: _feed(worker, waiting), workers))
        finally:  # also on Ctrl-C: the threads end when their processes do
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)  # with the assembler that it may have started
                worker.wait()
    for worker in workers:
        for pipe in (worker.stdin, worker.stdout):
            with contextlib.suppress(OSError):  # what the process did not read
                pipe.close()  # type: ignore[union-attr]
    if not all(ended):
        LOG.warning(f"{ended.count(False)} of {count} processes that compile kernels died; the rest is compiled later")


def _feed(worker: "subprocess.Popen[str]", waiting: "SimpleQueue[str]") -> bool:
    """Give a process one kernel after the other until none is left; False if it dies before."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    while True:
        try:
            worker.stdin.write(waiting.get_nowait() + "\n")  # by lines, without a flush
        except Empty:
            return True
        except OSError:
            return False
        if not worker.stdout.readline():
            return False
