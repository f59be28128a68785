"""NumPy files: `.npy` with named fields or four columns, `.npz` with one array per column. Never unpickles."""

import io
import itertools
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.columns import ColumnConverter, find_columns
from ripe_mambaspike.events.recording import EVENT, Events, Recording
from ripe_mambaspike.events.registry import register_chunk_encoder, register_format, register_writer, starts_with
from ripe_mambaspike.events.source import BLOCK_WORDS, MAX_ROW_BYTES, EventSource, ReadOptions, check_expansion

NPY = b"\x93NUMPY"
NPZ = (b"PK\x03\x04", b"PK\x05\x06")
EXPECTED = "fields x, y, t, p or four columns"
READ_ERRORS = (  # raised for damaged archives, for example for undecodable names or numbers that are too large
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, RuntimeError, LookupError, ValueError,
    OverflowError,
)  # fmt: skip
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as NumPy writes


@register_format("npy", title="npy", recognizes=starts_with(NPY))
def open_npy(path: Path, options: ReadOptions) -> EventSource:
    with path.open("rb") as file:
        shape, dtype, fortran = _read_header(file)
        start = file.tell()
    _check_length(start, shape, dtype, path.stat().st_size - start)
    named = _fields(shape, dtype)

    def read_events(source: EventSource) -> Iterator[Events]:
        rows = _rows(path, start, shape, dtype, fortran)
        yield from _events(rows, named, ColumnConverter(source, options.time_unit))

    return EventSource("npy", read_events)


@register_format("npz", title="npz", recognizes=starts_with(*NPZ))
def open_npz(path: Path, options: ReadOptions) -> EventSource:
    with _open_archive(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
        size = _read_size(archive, members["sensor_size"]) if "sensor_size" in members else None
    named = find_columns(list(members))
    tables = [name for name in members if name != "sensor_size"]
    if named is None and len(tables) == 1:
        return _open_table(path, members[tables[0]], size, options)
    if named is None:
        raise ReadError.expected("arrays", "arrays x, y, t, p", ", ".join(members) or "none")
    with _open_archive(path) as archive:
        shapes = {ours: _column_shape(archive, members[theirs]) for ours, theirs in named.items()}
    if len(set(shapes.values())) != 1:
        raise ReadError.expected("columns", "four of one length", shapes)
    check_expansion(shapes["t"], path.stat().st_size)

    def read_events(source: EventSource) -> Iterator[Events]:
        columns = ColumnConverter(source, options.time_unit)
        at = 0
        with _open_archive(path) as archive:
            streams = {name: _member(archive, members[theirs]) for name, theirs in named.items()}
            while True:
                piece = {name: next(stream, None) for name, stream in streams.items()}
                present = {name: column for name, column in piece.items() if column is not None}
                if not present:
                    break
                if len(present) < 4:
                    raise ReadError.expected("columns", "four of one length", "different lengths")
                yield columns(present, at)
                at += len(present["t"])

    return EventSource("npz", read_events, size)


def _open_table(path: Path, member: str, size: tuple[int, int] | None, options: ReadOptions) -> EventSource:
    """An archive with one array of events."""
    with _open_archive(path) as archive:
        shape, dtype = _member_header(archive, member)
    named = _fields(shape, dtype)
    check_expansion(shape[0], path.stat().st_size)

    def read_events(source: EventSource) -> Iterator[Events]:
        with _open_archive(path) as archive:
            rows = zip(itertools.count(0, BLOCK_WORDS), _member(archive, member), strict=False)
            yield from _events(rows, named, ColumnConverter(source, options.time_unit))

    return EventSource("npz", read_events, size)


def _column_shape(archive: zipfile.ZipFile, member: str) -> int:
    """The length of a column, read from its header."""
    shape, dtype = _member_header(archive, member)
    if len(shape) != 1 or dtype.kind not in "iufb":
        raise ReadError.expected(member, "a column of numbers", f"{dtype} of shape {shape}")
    return shape[0]


def _fields(shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, str] | None:
    """{x, y, t, p: field} of an array of events; None for four columns without names."""
    if dtype.names:
        named = find_columns(dtype.names)
        if named is None or len(shape) != 1:
            raise ReadError.expected("fields", EXPECTED, f"{', '.join(dtype.names)} of shape {shape}")
        return named
    if len(shape) != 2 or shape[1] != 4 or dtype.kind not in "iuf":
        raise ReadError.expected("fields", EXPECTED, f"{dtype} of shape {shape}")
    return None


def _events(
    blocks: Iterator[tuple[int, NDArray[Any]]], named: dict[str, str] | None, columns: ColumnConverter
) -> Iterator[Events]:
    """Convert blocks of rows, each with the index of its first row, to events."""
    for at, rows in blocks:
        if named is None:
            yield columns.convert_rows(rows, at)
        else:
            yield columns({name: rows[theirs] for name, theirs in named.items()}, at)


def _open_archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except READ_ERRORS as error:
        raise ReadError.expected("archive", "an npz file", f"damage ({error})") from error


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's SyntaxWarning about a damaged header
            shape, fortran, dtype = read(file)
    except (ValueError, OSError, EOFError, TypeError, SyntaxError, zlib.error, zipfile.BadZipFile) as error:
        raise ReadError.expected("header", "an array's header", f"damage ({str(error)[:100]})") from error
    except Exception as error:  # the header is Python source and is parsed as such
        raise ReadError.expected("header", "an array's header", f"damage ({type(error).__name__})") from error
    if dtype.hasobject:
        raise ReadError.expected("dtype", EXPECTED, "Python objects")
    if not 0 < dtype.itemsize <= MAX_ROW_BYTES or any(side < 0 for side in shape):
        raise ReadError.expected("dtype", EXPECTED, f"{dtype} of shape {shape}")
    return shape, dtype, fortran and len(shape) > 1


def _check_length(start: int, shape: tuple[int, ...], dtype: np.dtype[Any], there: int) -> None:
    wanted = int(np.prod([dtype.itemsize, *shape], dtype=object))
    if there != wanted:
        raise ReadError.expected(
            "size", f"{wanted} bytes ({shape} of {dtype.itemsize}) after the header at byte {start}", there
        )


def _rows(
    path: Path, start: int, shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Blocks of rows, each with the index of its first row."""
    if fortran and shape[0]:  # stored column by column
        mapped = np.memmap(path, dtype, "r", start, shape, "F")
        yield from ((at, np.array(mapped[at : at + BLOCK_WORDS])) for at in range(0, shape[0], BLOCK_WORDS))
        return
    width = int(np.prod(shape[1:]))
    with path.open("rb") as file:
        file.seek(start)
        for at in range(0, shape[0], BLOCK_WORDS):
            count = min(BLOCK_WORDS, shape[0] - at)
            rows = np.frombuffer(file.read(count * width * dtype.itemsize), dtype)
            yield at, rows.reshape(count, *shape[1:])


@contextmanager
def _open_member(archive: zipfile.ZipFile, name: str) -> Iterator[IO[bytes]]:
    """One array of the archive. Only NumPy's own compression is allowed: others let the file decide on memory."""
    try:
        if archive.getinfo(name).compress_type not in METHODS:
            raise ReadError.expected(name, "NumPy's own compression", "another one")
        with archive.open(name) as file:
            yield file
    except READ_ERRORS as error:
        raise ReadError.expected(name, "an array", f"damage ({error})") from error


def _member_header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with _open_member(archive, name) as file:
        return _read_header(file)[:2]


def _member(archive: zipfile.ZipFile, name: str) -> Iterator[NDArray[Any]]:
    """One array of the archive, a block at a time."""
    with _open_member(archive, name) as file:
        shape, dtype, fortran = _read_header(file)
        if fortran or not shape:
            raise ReadError.expected(name, "an array stored by rows", f"columns of shape {shape}")
        row = dtype.itemsize * math.prod(shape[1:])
        for at in range(0, shape[0], BLOCK_WORDS):
            count = min(BLOCK_WORDS, shape[0] - at)
            data = file.read(count * row)
            if len(data) < count * row:
                raise ReadError.expected(name, f"{shape[0]} events", at + len(data) // max(1, row))
            yield np.frombuffer(data, dtype).reshape(count, *shape[1:])
        if file.read(1):  # reading to the end verifies the checksum
            raise ReadError.expected(name, f"{shape}", "more")


def _read_size(archive: zipfile.ZipFile, name: str) -> tuple[int, int]:
    shape, dtype = _member_header(archive, name)
    if shape == (2,) and dtype.kind in "iu":
        (values,) = _member(archive, name)
        if (values > 0).all() and (values <= 65536).all():
            return int(values[0]), int(values[1])
    raise ReadError.expected("sensor_size", "a width and a height", f"{dtype} of shape {shape}")


@register_writer(".npz")
def encode_npz(recording: Recording) -> Iterator[bytes]:
    """Compressed columns and the sensor's size; the bytes are deterministic."""
    buffer = io.BytesIO()
    columns = {name: np.ascontiguousarray(recording.events[name]) for name in "xytp"}
    columns["sensor_size"] = np.array(recording.sensor_size, np.int64)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, column in columns.items():
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as file:
                npy.write_array(file, column, allow_pickle=False)
    yield buffer.getvalue()


@register_writer(".npy")
def encode_npy(recording: Recording) -> Iterator[bytes]:
    buffer = io.BytesIO()
    npy.write_array(buffer, recording.events, allow_pickle=False)
    yield buffer.getvalue()


@register_chunk_encoder(".npy")
class NpyEncoder:
    """One array, whose length is put into the header at the end; NumPy leaves room for it."""

    def __init__(self, sensor_size: tuple[int, int], first_us: int) -> None:
        self._count = 0

    def encode(self, events: Events) -> bytes:
        header = b"" if self._count else self._header()
        self._count += len(events)
        return header + events.astype(EVENT).tobytes() if self._count else b""

    def new_header(self) -> bytes | None:
        return self._header()

    def _header(self) -> bytes:
        buffer = io.BytesIO()
        described = npy.header_data_from_array_1_0(np.empty(0, EVENT))
        npy.write_array_header_1_0(buffer, {**described, "shape": (self._count,)})
        return buffer.getvalue()
