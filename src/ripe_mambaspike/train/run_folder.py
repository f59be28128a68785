"""The folder of a run: one process at a time, nothing left of killed ones, and what it says of a run that has ended."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import DataError, WeightsError
from ripe_mambaspike.files import locked, make_folder, remove_leftovers
from ripe_mambaspike.train.distributed import Processes
from ripe_mambaspike.train.seeds import RESULT_FILE, read_result

LOG = logging.getLogger("ripe_mambaspike")
LOCK_FILE = ".lock"
WRITTEN = {  # folders in that of a run, and what is written there
    ".": r"recipe\.yaml|log\.csv|result\.json|report\.html|best|last",
    "checkpoints": r"move-\d{9}-\d{9}\.safetensors",
    "best": r"config\.json|model\.safetensors|labels\.json",
}


@contextmanager
def in_use(folder: Path, processes: Processes) -> Iterator[None]:
    """Make the folder and keep every other run out of it while inside; what killed runs left there is removed.

    The first of several processes holds the lock; the others come in when it does. A folder that cannot be written is
    not locked: a run that has ended is read there, and any other fails to write.
    """
    try:
        make_folder(folder)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be made ({error.strerror or error}); a folder to write is wanted", path=folder
        ) from error
    if processes.is_first and os.access(folder, os.W_OK):
        with locked(folder / LOCK_FILE, f"{folder} is in use by another run"):
            for inner, names in WRITTEN.items():
                for path in remove_leftovers(folder / inner, names):
                    LOG.info(f"{path} was left by a run that was killed, and is removed")
            processes.wait()
            yield
    else:
        processes.wait()
        yield


def ended_result(folder: Path) -> dict[str, Any] | None:
    """The result of a run that has ended, None where there is none; a damaged one is refused."""
    result = read_result(folder)
    if result is None:
        return None
    kinds: dict[str, type | tuple[type, ...]] = {"name": str, "set": str, "picked_on": str, "protocol": str}
    for name, kind in {**kinds, "epoch": int, "per_class": list, "confusion": list}.items():
        value = result.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _wrong(folder, name, value, getattr(kind, "__name__", "another kind"))
    if not re.fullmatch("val|test|last epoch", result["picked_on"]):
        raise _wrong(folder, "picked_on", result["picked_on"], "val, test or last epoch")
    return result


def _wrong(folder: Path, name: str, value: Any, wanted: str) -> WeightsError:
    path = folder / RESULT_FILE
    said = f"{path}: {name}: expected {wanted}, got {str(value)[:60]!r}; without the file the run ends anew"
    return WeightsError(said, field=name, path=path)
