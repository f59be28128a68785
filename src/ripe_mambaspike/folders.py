"""A folder that appears whole or not at all, in the place of an earlier one."""

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ripe_mambaspike.files import (
    UNSUPPORTED_ERRNOS,
    earlier_versions,
    file_mask,
    make_folder,
    remove_leftovers,
    remove_path,
    sync_folder,
    writer_alive,
    writer_dead,
)

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that takes the path's place when the block ends well, and leaves no trace when it does not.

    What stood in its place stays until the new one is whole and on the disk; then the two change places in one step
    of the file system. Where it has no such step (other systems than Linux, some network drives) there is a moment
    between two renames without a folder; one that was killed in it is put right by the next call. The folder it is put
    into is made when missing.
    """
    path = path.resolve()
    above = [folder for folder in path.parents if not folder.exists()]  # the nearest first
    make_folder(path.parent)
    _recover(path)
    remove_leftovers(path.parent, re.escape(path.name))
    made = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    old = made.with_name(f"{made.name}.old")
    try:
        with writer_alive(os.open(made, os.O_RDONLY)):
            made.chmod(0o777 & ~file_mask())
            yield made
            _sync_tree(made)
            if not path.exists():
                made.replace(path)
            elif not _exchange(made, path):
                path.replace(old)
                made.replace(path)
        sync_folder(path.parent)
    except BaseException:
        if old.exists() and not path.exists():
            old.replace(path)
        remove_path(made)
        for folder in above:
            with suppress(OSError):  # someone else put something there
                folder.rmdir()
        raise
    remove_path(made)  # which holds the old one, after an exchange
    remove_path(old)


def _recover(path: Path) -> None:
    """Put the old folder back where a killed `atomic_folder` had moved it away and the new one was not in its place."""
    if path.exists():
        return
    for old in earlier_versions(path):
        with writer_dead(old.with_name(old.name.removesuffix(".old"))) as dead:
            if dead and not path.exists():
                old.replace(path)


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False where the system has no such step."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in UNSUPPORTED_ERRNOS:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)
