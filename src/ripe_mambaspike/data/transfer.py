"""The transfer of one archive from one mirror: resumable, verified and atomic.

Data is written to `NAME.part`; `NAME.part.json` stores the URL, the length and the server's version (ETag or date), so
that a later call resumes the download, or restarts it if the file on the server has changed. The file gets its final
name only after its checksum was verified.
"""

import http.client
import os
import re
import ssl
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib import request as web

import msgspec

from ripe_mambaspike.data.archives import archive_checksum, check_free_space
from ripe_mambaspike.data.mirrors import Archive
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import sync_folder
from ripe_mambaspike.schema import Document, read_json

Progress = Callable[[int, int | None], None]  # bytes done, bytes in all where known
MAX_TRIES = 5  # of one mirror in a row without receiving PROGRESS_BYTES more
WAIT_SECONDS = 1.0  # before the second try; longer before each further one
TIMEOUT_SECONDS = 30.0  # of silence
CHUNK_BYTES = 1 << 18
PROGRESS_BYTES = 1 << 20
MAX_ARCHIVE_BYTES = 256 << 30  # of an archive of unknown size
PROTOCOL_HANDLERS = (web.HTTPHandler, web.HTTPSHandler, web.ProxyHandler, web.UnknownHandler)  # neither ftp nor files
RESPONSE_HANDLERS = (web.HTTPRedirectHandler, web.HTTPErrorProcessor, web.HTTPDefaultErrorHandler)


class MirrorError(Exception):
    """This mirror cannot provide the file; try the next one."""


class _BrokenError(Exception):
    """The connection broke; retry the same mirror."""


class _RestartError(Exception):
    """The part file cannot be resumed from this mirror; start again."""


class PartialDownload(Document, frozen=True):
    """The contents of NAME.part.json."""

    url: str
    total: int | None
    version: str | None  # a strong ETag or a date, usable in If-Range


class Transfer:
    """The download of one archive from one mirror."""

    def __init__(self, archive: Archive, folder: Path, url: str, progress: Progress | None) -> None:
        self.archive, self.folder, self.url = archive, folder, url
        self.progress = progress or (lambda done, total: None)
        self.part = folder / f"{archive.name}.part"
        self.note = folder / f"{archive.name}.part.json"
        self.resumed = False  # the part file comes from more than one response

    def run(self) -> None:
        """Download the file, verify it and give it its final name."""
        for _ in range(2):
            self.receive_all()
            found, size = archive_checksum(self.part, self.archive.checksum.partition(":")[0]), self.size_on_disk()
            if found == self.archive.checksum and self.archive.size in (None, size):
                return self.finalize()
            self.discard()
            if not self.resumed:
                break  # a resumed file may mix two versions, so it is downloaded once more; a complete response is not
        raise MirrorError(f"gave {found} of {size} bytes")

    def receive_all(self) -> None:
        """Receive until the part file is complete."""
        tries, best = 0, self.size_on_disk()
        while True:
            try:
                return self.receive()
            except _RestartError:
                self.discard()
            except _BrokenError as error:
                size = self.size_on_disk()
                tries = 1 if size >= best + PROGRESS_BYTES else tries + 1  # only new bytes count as progress
                best = max(best, size)
                if tries >= MAX_TRIES:
                    raise MirrorError(f"broke off {tries} times, last at byte {size} ({error})") from error
                time.sleep(WAIT_SECONDS * tries)

    def receive(self) -> None:
        """Send one request, starting at the first missing byte."""
        note, offset = self.read_note(), self.size_on_disk()
        if note is None:
            offset = 0  # bytes of unknown origin are overwritten
        elif (whole := self.archive.size if note.total is None else note.total) is not None and offset >= whole:
            self.resumed = True
            return
        if self.archive.size is not None:
            check_free_space(self.folder, self.archive.size - offset, self.archive.name)
        headers = {"User-Agent": "ripe-mambaspike", "Accept-Encoding": "identity"}
        if note is not None and offset:
            headers["Range"] = f"bytes={offset}-"
            if note.url == self.url and note.version:  # not comparable between mirrors
                headers["If-Range"] = note.version
        with _open_url(self.url, headers, bool(offset)) as response:
            if response.status == 206 and offset and note is not None:
                total = self.check_continuation(response, offset, note)
                self.resumed = True
            elif response.status == 200:
                total = response.length
                self.check_total(total)
                self.start_part_file(PartialDownload(url=self.url, total=total, version=_version(response)))
                self.resumed, offset = False, 0
            else:
                raise MirrorError(f"answered {response.status}")
            if total is not None:
                check_free_space(self.folder, total - offset, self.archive.name)
            self.store(response, offset, total)

    def store(self, response: Any, offset: int, total: int | None) -> None:
        """Append the response body to the part file."""
        limit = total if total is not None else self.archive.size
        with self.writing(limit):
            file = self.part.open("ab", buffering=0)
        with file:
            self.progress(offset, limit)
            while True:
                try:
                    chunk = response.read1(CHUNK_BYTES)
                except (OSError, http.client.HTTPException) as error:
                    raise _BrokenError(_reason(error)) from error
                if not chunk:
                    break
                if offset + len(chunk) > (MAX_ARCHIVE_BYTES if limit is None else limit):
                    self.discard()
                    raise MirrorError(f"gave more than {MAX_ARCHIVE_BYTES if limit is None else limit} bytes")
                with self.writing(limit):
                    _write(file, chunk)
                offset += len(chunk)
                self.progress(offset, limit)
        if total is not None and offset < total:
            raise _BrokenError(f"{total} bytes were announced")

    def check_continuation(self, response: Any, offset: int, note: PartialDownload) -> int | None:
        """The length of the whole file, after checking that the response continues the same file."""
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if not found or int(found[1]) != offset:
            raise _RestartError
        total = None if found[2] == "*" else int(found[2])
        self.check_total(total)
        version = _version(response)
        changed = note.url == self.url and version is not None and version != note.version
        if changed or (None not in (total, note.total) and total != note.total):
            raise _RestartError  # the server supports Range but not If-Range
        return total if total is not None else note.total

    def check_total(self, total: int | None) -> None:
        if total is not None and self.archive.size not in (None, total):
            raise MirrorError(f"has a file of {total} bytes")

    def start_part_file(self, note: PartialDownload) -> None:
        """Create an empty part file, then its note, so that data never has the note of another version."""
        with self.writing(note.total):
            self.part.write_bytes(b"")
            self.note.write_bytes(msgspec.json.encode(note))

    def read_note(self) -> PartialDownload | None:
        try:
            return read_json(self.note, PartialDownload)
        except DataError:
            return None

    def size_on_disk(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def finalize(self) -> None:
        """Sync, then rename, so that a power failure leaves either the whole file or the part file."""
        with self.writing(self.size_on_disk()):
            with self.part.open("rb") as file:
                os.fsync(file.fileno())
            self.part.replace(self.folder / self.archive.name)
            self.note.unlink(missing_ok=True)
            sync_folder(self.folder)

    @contextmanager
    def writing(self, whole: int | None) -> Iterator[None]:
        """Turn write errors into a DataError that says how many bytes are missing."""
        try:
            yield
        except OSError as error:
            needed = "more space" if whole is None else f"{whole - self.size_on_disk()} more bytes"
            hint = "what was downloaded is kept for the next try"
            raise DataError.expected("disk", needed, error, path=self.part, hint=hint) from error


def _open_url(url: str, headers: dict[str, str], continuing: bool) -> Any:
    """The open response."""
    opener = web.OpenerDirector()
    for handler in (*PROTOCOL_HANDLERS, *RESPONSE_HANDLERS):
        opener.add_handler(handler())
    try:
        return opener.open(web.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and continuing:
            raise _RestartError from error
        if error.code in (408, 425, 429) or error.code >= 500:
            raise _BrokenError(f"it answered {error.code}") from error
        raise MirrorError(f"answered {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError | str | ValueError):  # a retry would not help
            raise MirrorError(f"cannot be reached ({_reason(cause)})") from error
        raise _BrokenError(_reason(cause)) from error


def _reason(error: object) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _version(response: Any) -> str | None:
    """The value for If-Range: a strong ETag, or the date."""
    etag = response.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")


def _write(file: BinaryIO, data: bytes) -> None:
    """Write all data; a raw file may write less at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
