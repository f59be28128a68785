"""Bounded reads, atomic writes and lock files."""

import errno
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from ripe_mambaspike.errors import DataError, InputError, RipeError

fcntl: Any = None
if sys.platform != "win32":
    import fcntl

LOG = logging.getLogger("ripe_mambaspike")
UNSUPPORTED_ERRNOS = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)  # unsupported here
MAX_JSON_BYTES = 64 << 20  # of a config, manifest or result; real ones have a few kilobytes


def open_regular(path: Path) -> BufferedReader:
    """A regular file, open for reading; raises OSError for pipes and devices, without blocking."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes; raises OSError for anything else.

    Too large files are refused before they are read.
    """
    with open_regular(path) as file:
        facts = os.fstat(file.fileno())
        if facts.st_size > most:
            raise OSError(errno.EFBIG, f"{facts.st_size:,} bytes, at most {most:,} are read", str(path))
        data = file.read(min(most, facts.st_size) + 1)  # read allocates the whole size
    if len(data) > facts.st_size:
        raise OSError(errno.EBUSY, "it grew while it was read", str(path))
    return data


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that replaces the path if the block succeeds, and is removed if it fails.

    File and folder are synced, so after the block neither content nor name is lost in a power failure.
    """
    with _temporary_file(path) as (file, temporary):
        yield file
        _finish(file, temporary)
        temporary.replace(path)
    sync_folder(path.parent)


def write_file(
    path: Path, data: bytes | Iterable[bytes], error: type[RipeError] = InputError, field: str = "path"
) -> Path:
    """Write a file atomically and return its path; raises `error` if it cannot be written."""
    try:
        with atomic_write(path) as file:
            file.writelines([data] if isinstance(data, bytes) else data)
    except OSError as cause:
        raise error.expected(field, "a file that can be written", cause, path=path) from cause
    return path


def write_together(folder: Path, files: Mapping[str, bytes], stale: Sequence[str] = ()) -> None:
    """Write several files, the last of which contains the checksums of the others.

    Files of an earlier save that are `stale` are removed before any new file is renamed into place.

    All of them are on the disk under temporary names before the first is renamed. An earlier version of each file but
    the last keeps a second name (`.NAME.xxxxxxxx.old`) until the last one is renamed. So whenever the process is killed
    or the power fails, the last file's checksums are those of files that exist: under their names, or among
    `earlier_versions`. An error puts the earlier versions back.
    """
    *others, last = files
    with ExitStack() as stack:
        written = {name: stack.enter_context(_temporary_file(folder / name)) for name in files}
        for name, (file, temporary) in written.items():
            file.write(files[name])
            _finish(file, temporary)
        kept = {name: temporary.with_name(f"{temporary.name}.old") for name, (_, temporary) in written.items()}
        moved: list[str] = []
        try:
            for name in others:
                if (folder / name).is_file():
                    _link_or_copy(folder / name, kept[name])
            for name in stale:
                (folder / name).unlink(missing_ok=True)
            sync_folder(folder)
            for name in others:
                written[name][1].replace(folder / name)
                moved.append(name)
            sync_folder(folder)
            written[last][1].replace(folder / last)
        except BaseException:
            for name in others:
                if name in moved and kept[name].exists():
                    kept[name].replace(folder / name)
                kept[name].unlink(missing_ok=True)
            raise
    sync_folder(folder)
    for name in (*files, *stale):
        remove_leftovers(folder, re.escape(name))


def earlier_versions(path: Path) -> list[Path]:
    """Earlier versions of a file that are left when `write_together` was interrupted."""
    return [found for found in _temporaries(path.parent, re.escape(path.name)) if found.name.endswith(".old")]


def unfinished_versions(path: Path) -> list[Path]:
    """Temporary files of this path that killed writers left; none where locks are not supported."""
    found = []
    for temporary in _temporaries(path.parent, re.escape(path.name)):
        with writer_dead(temporary) as dead:
            if dead:
                found.append(temporary)
    return found


def remove_leftovers(folder: Path, names: str) -> list[Path]:
    """Remove temporary files that killed writers left in a folder, for files and folders matching the pattern `names`.

    Only names that this module creates are considered. Writers hold a lock on what they write, so files of live writers
    are kept, as is everything where locks are not supported. Returns the removed paths.
    """
    removed = []
    for path in _temporaries(folder, names):
        writing = path.with_name(path.name.removesuffix(".old"))
        with writer_dead(writing if writing.exists() else path) as dead:
            if dead:
                remove_path(path)
                removed.append(path)
    return removed


@contextmanager
def locked(path: Path, busy: str) -> Iterator[bool]:
    """Hold a lock file; raises a DataError if another process, which `busy` describes, holds it.

    Locks end with their process. Yields whether the lock is held; it is not where locks are not supported.
    """
    if fcntl is None:
        yield False
        return
    held = False
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataError.expected("lock", "a folder that can be written", error, path=path) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise DataError.expected("lock", "no other process", busy, path=path) from error
        except OSError as error:
            LOG.warning(f"{path} cannot be locked here ({error.strerror}); take care that no second process uses it")
            break
        if os.fstat(handle).st_nlink:
            held = True
            break
        os.close(handle)  # removed by its last holder between the two calls
    try:
        yield held
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder with its parents, and sync their names to disk."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, where supported; until then a rename can be lost in a power failure."""
    if sys.platform == "win32":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:  # a folder without read permission
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED_ERRNOS:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _temporary_file(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A temporary file in the path's folder, locked while it is written and removed at the end."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file, writer_alive(os.dup(descriptor)):
            if not temporary.exists():  # removed as a leftover before it was locked
                continue
            try:
                yield file, temporary
            finally:
                temporary.unlink(missing_ok=True)
        return


def _finish(file: IO[bytes], temporary: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    temporary.chmod(0o666 & ~file_mask())
    file.close()


@contextmanager
def writer_alive(descriptor: int) -> Iterator[None]:
    """Hold a lock that tells `remove_leftovers` that the writer is alive; closes the descriptor at the end."""
    try:
        with suppress(OSError):  # without lock support `remove_leftovers` removes nothing
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def writer_dead(path: Path) -> Iterator[bool]:
    """Yields whether the path has no live writer; inside the block no writer can lock it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # a link, a socket, or gone
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        dead = stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFREG, stat.S_IFDIR)
    except OSError:  # held, or not supported
        dead = False
    try:
        yield dead
    finally:
        os.close(descriptor)


def _temporaries(folder: Path, names: str) -> list[Path]:
    if fcntl is None or not folder.is_dir():
        return []
    ours = re.compile(rf"\.(?:{names})\.(?:[a-z0-9_]{{8}}(?:\.old)?|[0-9]+\.tmp)")  # tmp: of earlier versions
    return sorted(path for path in folder.iterdir() if ours.fullmatch(path.name))


def _link_or_copy(path: Path, second: Path) -> None:
    try:
        os.link(path, second)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, second)
        with second.open("rb") as file:
            os.fsync(file.fileno())


def remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def file_mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
