"""The formats that recordings are read from and written to, by name.

A format is one module in `events/formats/`, which is discovered automatically: a function that opens a file, registered
with a function that recognizes the format, and optionally a function that encodes recordings.

    @register_format("toy", title="Toy", recognizes=lambda head, path: head.startswith(b"TOY1"))
    def open_toy(path: Path, options: ReadOptions) -> EventSource:
        return EventSource("toy", lambda source: decode_blocks(path, 4, WORD, decode, None))

    @register_writer(".toy")
    def encode_toy(recording: Recording) -> Iterator[bytes]: ...

A format that can be written piece by piece, while a camera is recorded, also registers a `ChunkEncoder`.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeVar

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.recording import Events, Recording
from ripe_mambaspike.events.source import EventSource, ReadOptions

Opener = Callable[[Path, ReadOptions], EventSource]
Encoder = Callable[[Recording], Iterator[bytes]]


class ChunkEncoder(Protocol):
    """Encodes a recording piece by piece; made with the sensor's size and the earliest time of the first piece."""

    def encode(self, events: Events) -> bytes:
        """The next bytes of the file, after the header with the first ones; raises InputError and changes nothing."""

    def new_header(self) -> bytes | None:
        """What the file has to begin with at the end, of the length of the header; None to leave it."""


MadeEncoder = TypeVar("MadeEncoder", bound=ChunkEncoder)


@dataclass(frozen=True)
class EventFormat:
    """How files of one format are recognized and opened."""

    name: str
    title: str  # for people
    recognizes: Callable[[bytes, Path], bool]  # by the file's first bytes
    open_here: Opener
    order: int = 0  # formats without a magic number are tried last
    headerless: bool = False  # files that are not recognized can be opened if the caller names the format
    isolated: bool = False  # decode in a separate process, since the package may crash or exhaust memory
    packages: tuple[str, ...] = ()  # imported before a file is opened
    optional_packages: tuple[str, ...] = ()

    def open(self, path: Path, options: ReadOptions) -> EventSource:
        """Open the file and read its header."""
        if self.isolated:
            from ripe_mambaspike.events.isolated import open_isolated

            return open_isolated(self.name, path, options)
        self.load_packages()
        return self.open_here(path, options)

    def load_packages(self) -> None:
        for package in self.packages:
            try:
                import_module(package)
            except ImportError as error:
                raise ReadError.expected(
                    "format", f"the package {package} for {self.title}", "none", hint="install ripe-mambaspike[data]"
                ) from error
        for package in self.optional_packages:
            with suppress(ImportError):
                import_module(package)


FORMATS: dict[str, EventFormat] = {}
ENCODERS: dict[str, Encoder] = {}  # by the ending of the file's name
CHUNK_ENCODERS: dict[str, Callable[[tuple[int, int], int], ChunkEncoder]] = {}  # by the ending, too


def register_format(
    name: str,
    *,
    title: str,
    recognizes: Callable[[bytes, Path], bool],
    order: int = 0,
    headerless: bool = False,
    isolated: bool = False,
    packages: tuple[str, ...] = (),
    optional_packages: tuple[str, ...] = (),
) -> Callable[[Opener], Opener]:
    """Register the function that opens files of a format; the arguments are the fields of `EventFormat`."""

    def register(open_here: Opener) -> Opener:
        FORMATS[name] = EventFormat(
            name, title, recognizes, open_here, order, headerless, isolated, packages, optional_packages
        )  # fmt: skip
        return open_here

    return register


def starts_with(*beginnings: bytes) -> Callable[[bytes, Path], bool]:
    """Recognize files by their first bytes."""
    return lambda head, path: head.startswith(beginnings)


def register_writer(*suffixes: str) -> Callable[[Encoder], Encoder]:
    """Register the function that encodes recordings for file names with these endings."""

    def register(encode: Encoder) -> Encoder:
        ENCODERS.update(dict.fromkeys(suffixes, encode))
        return encode

    return register


def register_chunk_encoder(*suffixes: str) -> Callable[[type[MadeEncoder]], type[MadeEncoder]]:
    """Register the class that encodes files with these endings piece by piece."""

    def register(made: type[MadeEncoder]) -> type[MadeEncoder]:
        CHUNK_ENCODERS.update(dict.fromkeys(suffixes, made))
        return made

    return register
