"""The header of Prophesee files: lines that start with `%`, then words.

RAW files name their encoding in an `evt` or a `format` line, and may give the sensor's size. DAT files name neither
encoding, and put two bytes (type and size of an event) before the events.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.source import ReadOptions

MAX_HEADER_BYTES = 1 << 20
MAX_LINES = 10_000  # of a header; real ones have twenty
SIZES = ((640, 480), (1280, 720))
ENCODINGS = {"2.0": "evt2", "2": "evt2", "2.1": "evt21", "21": "evt21", "3.0": "evt3", "3": "evt3"}


@dataclass(frozen=True)
class PropheseeHeader:
    values: dict[str, str]  # by name, in lower case
    start: int  # the byte after the header

    @property
    def encoding(self) -> str | None:
        """evt2, evt21 or evt3 as the header says; None for a DAT file."""
        encoding = self.values.get("evt") or self.values.get("format", "").split(";")[0].upper().removeprefix("EVT")
        if encoding in ENCODINGS:
            return ENCODINGS[encoding]
        if encoding:
            return encoding
        # The oldest RAW files have no such line.
        return "evt2" if {"system_id", "integrator_name"} & set(self.values) else None

    @property
    def sensor_size(self) -> tuple[int, int] | None:
        for text in (self.values.get("geometry", ""), self.values.get("format", "")):
            if match := re.fullmatch(r"(\d+)x(\d+)", text.strip()):
                return _size(match[1], match[2])
            width, height = re.search(r"width=(\d+)", text), re.search(r"height=(\d+)", text)
            if width and height:
                return _size(width[1], height[1])
        sides = [self.values.get(name, "") for name in ("width", "height")]
        return _size(*sides) if all(side.isdecimal() for side in sides) else None

    @property
    def time_base(self) -> int:
        """What is to be added to all times, as this package writes it; 0 where the header does not say."""
        base = self.values.get("time_base", "0")
        return int(base) if base.isdecimal() and len(base) < 19 else 0

    @property
    def metadata(self) -> dict[str, Any]:
        kept = ("date", "serial_number", "plugin_name", "system_id", "firmware_version", "integrator_name")
        return {name: self.values[name] for name in kept if name in self.values}


def has_encoding(encoding: str) -> Callable[[bytes, Path], bool]:
    """Recognize RAW files whose header names the encoding."""
    return lambda head, path: head.startswith(b"% ") and read_prophesee_header(path).encoding == encoding


def open_prophesee(path: Path, options: ReadOptions) -> PropheseeHeader:
    """The header of a file to be decoded. Without one, the caller has to give the sensor's size."""
    header = read_prophesee_header(path)
    if not header.values and options.sensor_size is None:
        raise ReadError.expected("sensor_size", "the size of the sensor for a file without a header", "none")
    return header


def read_prophesee_header(path: Path) -> PropheseeHeader:
    """Read the header lines of a file."""
    with path.open("rb") as file:
        return parse_prophesee_header(file)


def parse_prophesee_header(file: IO[bytes]) -> PropheseeHeader:
    """Read header lines. Event data may start with `%` by chance, but is not printable text."""
    values: dict[str, str] = {}
    for _ in range(MAX_LINES):
        start = file.tell()
        line = file.readline(MAX_HEADER_BYTES)
        if not line.startswith(b"%") or not line.rstrip(b"\r\n").isascii():
            return PropheseeHeader(values, start)
        text = line.decode("ascii").rstrip("\r\n\0")
        if not text.replace("\t", " ").replace("\0", " ").isprintable():
            return PropheseeHeader(values, start)
        if not line.endswith(b"\n") or file.tell() > MAX_HEADER_BYTES:
            raise ReadError.expected("header", "a new line", f"none up to byte {file.tell()}")
        name, _, value = text[1:].strip().partition(" ")
        if name == "end":
            return PropheseeHeader(values, file.tell())
        values.setdefault(name.lower(), value.strip())
    raise ReadError.expected("header", f"at most {MAX_LINES:,} lines", "more")


def _size(width: str, height: str) -> tuple[int, int] | None:
    if max(len(width), len(height)) > 9:
        return None
    size = int(width), int(height)
    return size if min(size) > 0 and max(size) <= 65536 else None
