"""Unpack zip and tar files of unknown origin: nothing outside the folder, no links, no more bytes than declared.

Files are extracted to a hidden folder next to the target, which is then renamed atomically: a folder that exists is
complete. A marker file names its archive, so that a second call has nothing to do.
"""

import bz2
import copy
import gzip
import lzma
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import msgspec

from ripe_mambaspike.data.store import file_checksum
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import locked
from ripe_mambaspike.schema import Document, read_json

MARKER_FILE = ".extracted.json"
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2")
MACOS_FOLDER = "__MACOSX"  # added by macOS
CHUNK_BYTES = 1 << 20
MAX_RATIO = 100  # extracted bytes per byte of the archive; recordings compress to a tenth at best
BASE_EXTRACTED_BYTES = 1 << 30  # that any archive may extract to
MAX_MEMBERS = 1_000_000
MAX_HEADER_BYTES = 1 << 20  # of a tar's extended header, which is read at once
HEADER_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
READ_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    ValueError,
)


class ExtractedFrom(Document, frozen=True):
    """The marker in a folder that was extracted."""

    archive: str
    bytes: int


class _BadMemberError(Exception):
    """What is wrong with the archive; completes the message "expected a safe archive, got one that …"."""


class _Budget:
    """The bytes and members that an archive may still extract to, including nested archives."""

    def __init__(self, packed: int) -> None:
        self.bytes, self.members = max(BASE_EXTRACTED_BYTES, MAX_RATIO * packed), MAX_MEMBERS

    def spend(self, size: int, name: str) -> None:
        self.bytes, self.members = self.bytes - size, self.members - 1
        if self.bytes < 0 or self.members < 0:
            raise _BadMemberError(f"unpacks to far more than it should, at {name[:80]!r}")


class _BoundedMember(tarfile.TarInfo):
    """A tar member with a limit on the length of its extended headers."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in HEADER_TYPES and not 0 <= self.size <= MAX_HEADER_BYTES:
            raise _BadMemberError(f"has an extended header of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def extract(path: str | Path, folder: str | Path) -> Path:
    """Extract an archive into the folder and return it; does nothing if this archive was extracted there before.

    If the archive's only top-level entry is a folder with the target's name, its contents are used, so that Train.zip
    with Train/0/… gives Train/0 and not Train/Train/0. Nested archives are extracted where they are.
    """
    path, folder = Path(path), Path(folder)
    try:
        origin = ExtractedFrom(archive=path.name, bytes=path.stat().st_size)
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError.expected("archive", "a zip or tar file", error, path=error.filename) from error
    if _already_extracted(folder, origin):
        return folder
    with locked(folder.with_name(f".{folder.name}.lock"), f"another one that extracts {folder}"):
        if _already_extracted(folder, origin):  # the other process may have finished just now
            return folder
        work = folder.with_name(f".{folder.name}.extracting")
        shutil.rmtree(work, ignore_errors=True)  # left by a killed process
        try:
            work.mkdir()
            budget = _Budget(path.stat().st_size)
            _unpack(path, work, budget)
            for inner in sorted(p for p in work.rglob("*") if p.is_file() and p.name.lower().endswith(SUFFIXES)):
                _unpack(inner, inner.parent, budget)
                inner.unlink()
            tree = _content_folder(work, folder.name)
            (tree / MARKER_FILE).write_bytes(msgspec.json.encode(origin) + b"\n")
            if folder.exists():
                folder.rmdir()  # empty, as _already_extracted has checked
            tree.rename(folder)
        except _BadMemberError as error:
            raise DataError.expected("archive", "a safe archive", f"one that {error}", path=path) from error
        except (*READ_ERRORS, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # an error of the system; a damaged stream has no errno
                raise DataError.expected("archive", f"one that fits into {folder}", error, path=path) from error
            reason = next(iter(str(error).splitlines()), type(error).__name__)  # tarfile lists every format it tried
            raise DataError.expected("archive", "a whole zip or tar file", f"damage ({reason})", path=path) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def archive_checksum(path: Path, kind: str) -> str:
    """The checksum of a file in the form `kind:digest`; `kind` is md5 or sha256."""
    return f"{kind}:{file_checksum(path, kind)}"


def check_free_space(folder: Path, needed: int, what: str) -> None:
    """Raise if the disk has less free space than needed."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError.expected("disk", f"{needed} free bytes for {what}", free, path=folder)


def extracted_from(folder: str | Path) -> str | None:
    """The name of the archive that was extracted to the folder; None if there is no marker."""
    marker = _read_marker(Path(folder))
    return marker.archive if marker else None


def _read_marker(folder: Path) -> ExtractedFrom | None:
    try:
        return read_json(folder / MARKER_FILE, ExtractedFrom)
    except DataError:
        return None


def _already_extracted(folder: Path, origin: ExtractedFrom) -> bool:
    """Whether this archive was extracted to the folder; raises if the folder has other content."""
    if not folder.exists():
        return False
    found = _read_marker(folder)
    if found == origin:
        return True
    if found is None and folder.is_dir() and not any(folder.iterdir()):
        return False
    maker = f"a folder made from {found.archive} of {found.bytes} bytes" if found else "a folder made otherwise"
    hint = f"move it away, so that {origin.archive} of {origin.bytes} bytes can be extracted"
    raise DataError.expected("folder", f"none, or one made from {origin.archive}", maker, path=folder, hint=hint)


def _unpack(path: Path, folder: Path, budget: _Budget) -> None:
    with path.open("rb") as file:  # by its first bytes, since a tar that ends with a zip would pass as a zip
        beginning = file.read(4)
    if beginning in (b"PK\x03\x04", b"PK\x05\x06"):
        _unpack_zip(path, folder, budget)
    else:
        _unpack_tar(path, folder, budget)


def _unpack_zip(path: Path, folder: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        for member in members:
            budget.spend(member.file_size, member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _BadMemberError(f"has {member.filename!r}, which is a link or device")
            if member.flag_bits & 1:
                raise _BadMemberError(f"has {member.filename!r}, which is encrypted")
        check_free_space(folder, sum(member.file_size for member in members), path.name)
        for member in members:
            target = _member_path(folder, member.filename)
            if member.filename.endswith("/"):  # `is_dir` fails on an empty name
                target.mkdir(parents=True, exist_ok=True)
                continue
            longer = copy.copy(member)
            longer.file_size += 1  # one more byte than declared detects longer members
            with archive.open(longer) as source:
                _write(source, target, member.file_size, member.filename)


def _unpack_tar(path: Path, folder: Path, budget: _Budget) -> None:
    """Extract in one pass; a tar has no list of members, so free space is checked for each member."""
    with path.open("rb") as file:
        head = file.read(3)
    # Not "r:*", which also tries the old LZMA format, in which any bytes are a header that may ask for gigabytes.
    kind: Any = "r:gz" if head.startswith(b"\x1f\x8b") else "r:bz2" if head == b"BZh" else "r:"
    with tarfile.open(path, kind, tarinfo=_BoundedMember) as archive:
        for member in archive:
            budget.spend(member.size, member.name)
            target = _member_path(folder, member.name)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            source = archive.extractfile(member) if member.isreg() else None
            if source is None:
                raise _BadMemberError(f"has {member.name!r}, which is a link or device")
            check_free_space(folder, member.size, path.name)
            with source:
                _write(source, target, member.size, member.name)
        stream = archive.fileobj
        while isinstance(stream, gzip.GzipFile | bz2.BZ2File) and stream.read(CHUNK_BYTES):
            pass  # reading to the end verifies the checksum of a compressed stream


def _member_path(folder: Path, name: str) -> Path:
    """The path of a member; raises for names that would leave the folder."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name) or ".." in parts or "\0" in name:
        raise _BadMemberError(f"has {name!r}, which would leave the folder")
    return folder.joinpath(*parts)


def _write(source: IO[bytes], target: Path, size: int, name: str) -> None:
    if target.exists():
        raise _BadMemberError(f"has {name!r} twice")
    target.parent.mkdir(parents=True, exist_ok=True)
    left = size
    with target.open("xb") as file:
        while chunk := source.read(CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise _BadMemberError(f"has {name!r} with more than the {size} bytes it declares")
            file.write(chunk)
    if left:
        raise _BadMemberError(f"has {name!r} with {size - left} of the {size} bytes it declares")


def _content_folder(work: Path, name: str) -> Path:
    """The folder to use: the extraction folder, or its only subfolder if that has the target's name."""
    shutil.rmtree(work / MACOS_FOLDER, ignore_errors=True)
    entries = list(work.iterdir())
    return work / name if len(entries) == 1 and entries[0].name == name and entries[0].is_dir() else work
