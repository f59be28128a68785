"""Reading files within bounds; writing them so that a reader sees the old or the new one; which commit this is."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

MAX_JSON = 64 << 20  # bytes of a config, manifest or result; real ones have some thousand


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most`; an OSError for anything else.

    A pipe or a device is refused without waiting for it, a sparse file of any size before it is read.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if facts.st_size > most:
            raise OSError(errno.EFBIG, f"{facts.st_size:,} bytes, at most {most:,} are read", str(path))
        data = file.read(most + 1)
    if len(data) > most:  # it grew
        raise OSError(errno.EFBIG, f"more than {most:,} bytes", str(path))
    return data


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the path's place when the block ends well, and leaves no trace when it does not."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that takes the path's place when the block ends well, and leaves no trace when it does not.

    What stood in its place stays until the new one is whole. The folder it is put into is made when missing.
    """
    path = path.resolve()
    above = [folder for folder in path.parents if not folder.exists()]  # the nearest first
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    old = made.with_name(f"{made.name}.old")
    try:
        mask = os.umask(0)
        os.umask(mask)
        made.chmod(0o777 & ~mask)
        yield made
        if path.exists():
            path.replace(old)
        made.replace(path)
    except BaseException:
        if old.exists() and not path.exists():
            old.replace(path)
        shutil.rmtree(made, ignore_errors=True)
        for folder in above:
            with suppress(OSError):  # someone else put something there
                folder.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)


def commit(start: Path | None = None) -> str | None:
    """The commit that is checked out where this file lies, None outside a checkout."""
    for folder in (start or Path(__file__).resolve()).parents:
        place = folder / ".git"
        try:
            if place.is_file():  # a worktree, whose folder is elsewhere
                place = folder / place.read_text().removeprefix("gitdir:").strip()
            if place.is_dir():
                return _head(place)
        except OSError:
            return None
    return None


def _head(place: Path) -> str | None:
    head = (place / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    common = place / "commondir"
    place = place / common.read_text().strip() if common.exists() else place
    if (place / name).exists():
        return (place / name).read_text().strip()
    packed = place / "packed-refs"
    lines = packed.read_text().splitlines() if packed.exists() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
