"""Taking in an upload: a raw body, counted as it comes, into a private file under a name made here."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from ripe_mambaspike.live.library import safe_suffix


class UploadError(Exception):
    """An upload that is not taken: the HTTP status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def check_announced(length: str | None, most: int) -> None:
    """Refuse a body that says it is too large, or says something else, before a byte of it is read."""
    if length is None:
        return
    if not (length.isascii() and length.isdigit()):
        raise UploadError(400, "the upload's length is not a number; a whole number of bytes is wanted")
    if len(length) > 18 or int(length) > most:
        raise too_large(most)


def too_large(most: int) -> UploadError:
    return UploadError(413, f"the upload is larger than {most / (1 << 20):g} MB; at most so much is taken")


def private_path(folder: Path, name: str) -> Path:
    """Where an upload is written: nothing of its name but a known ending is used."""
    return folder / f"{os.urandom(12).hex()}{safe_suffix(name)}"


async def receive(body: AsyncIterator[bytes], path: Path, most: int, seconds: int) -> int:
    """Write a body to the path; its size. A body that is too large, too slow or empty leaves no file."""
    taken = 0
    try:
        async with asyncio.timeout(seconds):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                async for piece in body:
                    taken += len(piece)
                    if taken > most:
                        raise too_large(most)
                    file.write(piece)
        if not taken:
            raise UploadError(400, "the upload is empty; a recording is wanted")
    except TimeoutError:
        path.unlink(missing_ok=True)
        raise UploadError(408, f"the upload did not arrive within {seconds} s; a smaller recording is wanted") from None
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UploadError(507, f"the upload cannot be written here ({error.strerror or error})") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return taken
