"""Write a folder atomically, replacing an earlier one."""

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
    """A temporary folder that replaces the path if the block succeeds, and is removed if it fails.

    The earlier folder stays until the new one is complete and synced; then the two are exchanged atomically. Where the
    file system has no atomic exchange (systems other than Linux, some network drives) two renames are used; if the
    process is killed between them, the next call restores the earlier folder. Parent folders are created.
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
            with suppress(OSError):  # created by another process meanwhile
                folder.rmdir()
        raise
    remove_path(made)  # contains the earlier folder after an exchange
    remove_path(old)


def _recover(path: Path) -> None:
    """Restore the earlier folder if `atomic_folder` was killed between its two renames."""
    if path.exists():
        return
    for old in earlier_versions(path):
        with writer_dead(old.with_name(old.name.removesuffix(".old"))) as dead:
            if dead and not path.exists():
                old.replace(path)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically; False if the system does not support it."""
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
