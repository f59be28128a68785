"""NumPy files: `.npy` with named fields or four columns, `.npz` with an array a column. Nothing is unpickled."""

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
from ripe_mambaspike.events.columns import ColumnConverter, find_columns, guess_order
from ripe_mambaspike.events.recording import Events, Recording
from ripe_mambaspike.events.source import BLOCK, MAX_ROW_BYTES, EventSource, Options, check_expansion

NPY = b"\x93NUMPY"
NPZ = (b"PK\x03\x04", b"PK\x05\x06")
EXPECTED = "the fields x, y, t, p or four columns are wanted"
READ_ERRORS = (  # what an archive raises: names that are no text and numbers that are too large among them
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, RuntimeError, LookupError, ValueError,
    OverflowError,
)  # fmt: skip
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as NumPy writes
ORDER_ROWS = 4096  # rows that settle the order of unnamed columns


def recognizes(head: bytes, path: Path) -> bool:
    return head.startswith(NPY) or head.startswith(NPZ)


def open_source(path: Path, options: Options) -> EventSource:
    with path.open("rb") as file:
        if file.read(len(NPY)) == NPY:
            return _open_npy(path, options)
    return _open_npz(path, options)


def _open_npy(path: Path, options: Options) -> EventSource:
    with path.open("rb") as file:
        shape, dtype, fortran = _read_header(file, path)
        start = file.tell()
    _check_length(path, start, shape, dtype, path.stat().st_size - start)
    source = EventSource("npy", lambda: iter(()))
    named = _fields(path, shape, dtype)

    def pieces() -> Iterator[Events]:
        yield from _events(
            _rows(path, start, shape, dtype, fortran), named, ColumnConverter(str(path), source, options.time_unit)
        )

    source.pieces = pieces
    return source


def _open_npz(path: Path, options: Options) -> EventSource:
    with _open_archive(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
        size = _read_size(archive, members["sensor_size"], path) if "sensor_size" in members else None
    named = find_columns(list(members))
    tables = [name for name in members if name != "sensor_size"]
    if named is None and len(tables) == 1:
        return _open_table(path, members[tables[0]], size, options)
    if named is None:
        raise ReadError(f"{path} holds the arrays {', '.join(members) or 'none'}; the arrays x, y, t, p are wanted")
    with _open_archive(path) as archive:
        shapes = {ours: _column_shape(archive, members[theirs], path) for ours, theirs in named.items()}
    if len(set(shapes.values())) != 1:
        raise ReadError(f"{path} has columns of different lengths ({shapes}); four of one length are wanted")
    check_expansion(path, shapes["t"], path.stat().st_size)
    source = EventSource("npz", lambda: iter(()), size)

    def pieces() -> Iterator[Events]:
        columns = ColumnConverter(str(path), source, options.time_unit)
        at = 0
        with _open_archive(path) as archive:
            streams = {name: _member(archive, members[theirs], path) for name, theirs in named.items()}
            while True:
                piece = {name: next(stream, None) for name, stream in streams.items()}
                present = {name: column for name, column in piece.items() if column is not None}
                if not present:
                    break
                if len(present) < 4:
                    raise ReadError(f"{path} has columns of different lengths; four of one length are wanted")
                yield columns(present, at)
                at += len(present["t"])

    source.pieces = pieces
    return source


def _open_table(path: Path, member: str, size: tuple[int, int] | None, options: Options) -> EventSource:
    """An archive with one array of events."""
    with _open_archive(path) as archive:
        shape, dtype = _member_header(archive, member, path)
    named = _fields(path, shape, dtype)
    check_expansion(path, shape[0], path.stat().st_size)
    source = EventSource("npz", lambda: iter(()), size)

    def pieces() -> Iterator[Events]:
        with _open_archive(path) as archive:
            rows = zip(itertools.count(0, BLOCK), _member(archive, member, path), strict=False)
            yield from _events(rows, named, ColumnConverter(str(path), source, options.time_unit))

    source.pieces = pieces
    return source


def _column_shape(archive: zipfile.ZipFile, member: str, path: Path) -> int:
    """The length of a column, by its header alone."""
    shape, dtype = _member_header(archive, member, path)
    if len(shape) != 1 or dtype.kind not in "iufb":
        raise ReadError(
            f"{path}: {member}: expected a column of numbers, got {dtype} of shape {shape}", field=member, path=path
        )
    return shape[0]


def _fields(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, str] | None:
    """{x, y, t, p: field} of an array of events; None for four columns without names."""
    if dtype.names:
        named = find_columns(dtype.names)
        if named is None or len(shape) != 1:
            raise ReadError(f"{path} holds the fields {', '.join(dtype.names)} and the shape {shape}; {EXPECTED}")
        return named
    if len(shape) != 2 or shape[1] != 4 or dtype.kind not in "iuf":
        raise ReadError(f"{path} holds {dtype} of shape {shape}; {EXPECTED}")
    return None


def _events(
    blocks: Iterator[tuple[int, NDArray[Any]]], named: dict[str, str] | None, columns: ColumnConverter
) -> Iterator[Events]:
    """Blocks of rows, each with the number of its first → events."""
    order = ""
    for at, rows in blocks:
        if named is not None:
            yield columns({name: rows[theirs] for name, theirs in named.items()}, at)
            continue
        order = order or _order(rows, columns.origin)
        columns.source.metadata["columns"] = order
        yield columns({name: rows[:, order.index(name)] for name in "xytp"}, at)


def _open_archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except READ_ERRORS as error:
        raise ReadError(f"{path} is a damaged archive: {error}") from error


def _read_header(file: IO[bytes], path: Path) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, about the text of a damaged header
            shape, fortran, dtype = read(file)
    except (ValueError, OSError, EOFError, TypeError, SyntaxError, zlib.error, zipfile.BadZipFile) as error:
        raise ReadError(f"{path} has a damaged array header: {str(error)[:100]}") from error
    except Exception as error:  # the header is Python text, and can fail as such
        raise ReadError(f"{path} has a damaged array header: {type(error).__name__}") from error
    if dtype.hasobject:
        raise ReadError(f"{path} holds Python objects; {EXPECTED}")
    if not 0 < dtype.itemsize <= MAX_ROW_BYTES or any(side < 0 for side in shape):
        raise ReadError(f"{path} holds {dtype} of shape {shape}; {EXPECTED}", field="dtype", path=path)
    return shape, dtype, fortran and len(shape) > 1


def _check_length(path: Path, start: int, shape: tuple[int, ...], dtype: np.dtype[Any], there: int) -> None:
    wanted = int(np.prod([dtype.itemsize, *shape], dtype=object))
    if there != wanted:
        raise ReadError(
            f"{path} has {there} bytes after its header (byte {start}), which says {shape} of {dtype.itemsize} bytes"
        )


def _rows(
    path: Path, start: int, shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Blocks of rows, each with the number of its first."""
    if fortran and shape[0]:  # stored column by column
        mapped = np.memmap(path, dtype, "r", start, shape, "F")
        yield from ((at, np.array(mapped[at : at + BLOCK])) for at in range(0, shape[0], BLOCK))
        return
    width = int(np.prod(shape[1:]))
    with path.open("rb") as file:
        file.seek(start)
        for at in range(0, shape[0], BLOCK):
            count = min(BLOCK, shape[0] - at)
            rows = np.frombuffer(file.read(count * width * dtype.itemsize), dtype)
            yield at, rows.reshape(count, *shape[1:])


def _order(rows: NDArray[Any], path: str) -> str:
    order = guess_order(rows[:ORDER_ROWS])
    if order is None:
        raise ReadError(f"{path} has four columns without names, whose order its values do not tell; {EXPECTED}")
    return order


@contextmanager
def _open_member(archive: zipfile.ZipFile, name: str, path: Path) -> Iterator[IO[bytes]]:
    """One array of the archive, packed as NumPy does: other ways need memory that the file decides on."""
    try:
        if archive.getinfo(name).compress_type not in METHODS:
            raise ReadError(f"{path} has {name} compressed in another way than NumPy does", field=name, path=path)
        with archive.open(name) as file:
            yield file
    except READ_ERRORS as error:
        raise ReadError(f"{path} has {name} damaged: {error}", field=name, path=path) from error


def _member_header(archive: zipfile.ZipFile, name: str, path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with _open_member(archive, name, path) as file:
        return _read_header(file, path)[:2]


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> Iterator[NDArray[Any]]:
    """One array of the archive, a block at a time."""
    with _open_member(archive, name, path) as file:
        shape, dtype, fortran = _read_header(file, path)
        if fortran or not shape:
            raise ReadError(f"{path} has {name} of the shape {shape}, stored by columns; rows are wanted")
        row = dtype.itemsize * math.prod(shape[1:])
        for at in range(0, shape[0], BLOCK):
            count = min(BLOCK, shape[0] - at)
            data = file.read(count * row)
            if len(data) < count * row:
                raise ReadError(f"{path} has {name} cut off after {at + len(data) // max(1, row)} events")
            yield np.frombuffer(data, dtype).reshape(count, *shape[1:])
        if file.read(1):  # at the end, the archive compares its checksum
            raise ReadError(f"{path}: {name}: expected {shape}, got more", field=name, path=path)


def _read_size(archive: zipfile.ZipFile, name: str, path: Path) -> tuple[int, int]:
    shape, dtype = _member_header(archive, name, path)
    if shape == (2,) and dtype.kind in "iu":
        (values,) = _member(archive, name, path)
        if (values > 0).all() and (values <= 65536).all():
            return int(values[0]), int(values[1])
    raise ReadError(
        f"{path} has a sensor_size that is no width and height ({dtype} of shape {shape})",
        field="sensor_size",
        path=path,
    )


def encode_npz(recording: Recording) -> Iterator[bytes]:
    """Compressed columns and the sensor's size, the same bytes every time."""
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


def encode_npy(recording: Recording) -> Iterator[bytes]:
    buffer = io.BytesIO()
    npy.write_array(buffer, recording.events, allow_pickle=False)
    yield buffer.getvalue()
