"""Divide work between processes; results come in order, the first error is raised at once."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from ripe_mambaspike.errors import DataError
from ripe_mambaspike.own_modules import import_own_modules

Item = TypeVar("Item")
Result = TypeVar("Result")


def _start_worker() -> None:
    """Import the modules of the parent, and end when it is killed; a worker would wait for work forever otherwise."""
    import_own_modules()
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class Workers:
    """A pool of processes; with one worker, the work is done in this process."""

    def __init__(self, count: int) -> None:
        self._pool = None
        if count > 1:
            # Spawn: forking a process with threads may hang.
            self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _start_worker)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=kind is not None)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """The results in order. The first error stops the work, after waiting for tasks that have started."""
        if self._pool is None or len(items) < 2:
            yield from map(function, items)
            return
        try:
            yield from self._pool.map(function, items)
        except BrokenProcessPool as error:
            hint = "fewer workers need less memory; run the same command again"
            raise DataError.expected("workers", "running processes", "one that was killed", hint=hint) from error
