"""Writing files so that a reader sees the old one or the new one, never half of one; and which commit this is."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


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
