"""The one file of a form (multipart/form-data), as curl -F and browsers send it.

Only what is needed here: the form lies in memory or is mapped into it, and the file is a span of its bytes.
"""

import re
from mmap import mmap
from typing import NamedTuple

from ripe_mambaspike.errors import InputError

MAX_PART_HEAD_BYTES = 8192
BOUNDARY = re.compile(r'boundary=(?:"([^"\\]{1,70})"|([^\s";,]{1,70}))(?:\s*;|\s*$)', re.IGNORECASE)
FILE_NAME = re.compile(rb';\s*filename=(?:"((?:[^"\\\r\n]|\\.)*)"|([^\s";]+))', re.IGNORECASE)


class FilePart(NamedTuple):
    """The file of a form: its name as it was sent, and its bytes [start, stop) of the form."""

    name: str
    start: int
    stop: int


def form_boundary(content_type: str) -> bytes:
    """The boundary between the parts, from the header of the request."""
    found = BOUNDARY.search(content_type)
    if found is None:
        raise InputError.expected("content-type", "multipart/form-data with a boundary", "none that can be used")
    return (found[1] or found[2]).encode("latin-1", "replace")


def find_file_part(form: bytes | mmap, boundary: bytes, max_parts: int) -> FilePart:
    """The only part with a file name; other fields are left out. Linear in the form's length, whatever it contains."""
    delimiter = b"\r\n--" + boundary
    if form[: len(delimiter) - 2] != delimiter[2:]:
        raise InputError.expected("form", "a first part after the boundary of the content-type", "something else")
    found: FilePart | None = None
    place = len(delimiter) - 2
    for _ in range(max_parts):
        if form[place : place + 2] == b"--":
            break
        start = form.find(b"\r\n\r\n", place, place + MAX_PART_HEAD_BYTES)
        if form[place : place + 2] != b"\r\n" or start < 0:
            raise InputError.expected("form", f"a part with a head of at most {MAX_PART_HEAD_BYTES} bytes", "none")
        stop = form.find(delimiter, start + 2)
        if stop < 0:
            raise InputError.expected("form", "a closing boundary", "a form that was cut off")
        named = FILE_NAME.search(_disposition(form[place:start]))
        if named is not None and found is not None:
            raise InputError.expected("form", "one file", "several")
        if named is not None:
            name = (named[1] or named[2] or b"").decode("utf-8", "replace").replace('\\"', '"')
            found = FilePart(name, start + 4, max(start + 4, stop))
        place = stop + len(delimiter)
    else:
        raise InputError.expected("form", f"fewer than {max_parts} parts", "more")
    if found is None:
        raise InputError.expected("form", "one file", "none")
    return found


def _disposition(head: bytes) -> bytes:
    """The header of a part that names its file."""
    lines = (line for line in head.split(b"\r\n") if line.lower().startswith(b"content-disposition:"))
    return next(lines, b"")
