"""End the workers of a DataLoader when it is garbage collected or Python exits.

Workers ignore SIGTERM, so they end only by the None that PyTorch puts in their queues, or when their parent is gone.
PyTorch puts it there in `__del__`, which is too late in a reference cycle: the collector calls weakref callbacks first,
and those of `multiprocessing` close the queues. At exit it does so only for pinned memory. Without the None, Python
would wait for the workers, and they for Python.
"""

import atexit
import os
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch.utils.data import DataLoader

# What each iterator needs to end its workers. These strong references keep it out of a cycle that is collected.
_NEEDED: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()
_WORKERS: WeakSet[BaseProcess] = WeakSet()  # `multiprocessing` itself keeps those that run


def iterate_loader(loader: DataLoader[Any]) -> Iterator[Any]:
    """`iter(loader)`; its worker processes end with it, and before Python exits."""
    iterator: Any = iter(loader)
    if iterator not in _NEEDED:  # persistent workers have one iterator for all epochs
        _NEEDED[iterator] = (
            iterator._workers,
            iterator._index_queues,
            iterator._worker_result_queue,
            iterator._workers_done_event,
        )
        _WORKERS.update(iterator._workers)
    return iterator


@atexit.register  # runs before PyTorch's own, which was registered earlier and makes `_shutdown_workers` do nothing
def _end_all() -> None:
    mine = [worker for worker in _WORKERS if worker._parent_pid == os.getpid()]  # type: ignore[attr-defined]
    if not mine:  # also in a forked process: the workers belong to its parent
        return
    for iterator in list(_NEEDED):
        iterator._shutdown_workers()
    for worker in mine:
        if worker.is_alive():  # it was stopped, or waits for a disk
            worker.kill()
