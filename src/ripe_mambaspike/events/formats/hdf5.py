"""HDF5, by the package `h5py`: DSEC (`events/x …`, `t_offset`), rpg (`events/xs …` in seconds), v2e (`events` [n, 4]),
and a compound dataset with named fields.

An HDF5 file can refer to other files, claim sizes without storing data, and compress gigabytes into kilobytes. Only
data in the file itself is read, within limits and in a separate process (`events/isolated.py`).
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.columns import NAMES, ColumnConverter, find_columns
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.registry import register_format, starts_with
from ripe_mambaspike.events.source import BLOCK_WORDS, MAX_ROW_BYTES, EventSource, ReadOptions, check_expansion

MAGIC = b"\x89HDF\r\n\x1a\n"
GROUPS = ("events", "CD/events", "dvs/events", "prophesee/left", "davis/left/events", "/")
READ_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError)  # what h5py raises
EXPECTED = "datasets x, y, t, p in a group events, or a dataset events with four columns"
MAX_CHUNK_BYTES = 1 << 26  # uncompressed size of one chunk; h5py writes chunks of at most 1 MiB
MIN_CACHE_BYTES = 1 << 20
MAX_MEMBERS = 10_000  # members of one group
MAX_LINKS = 16  # followed one after another, within the file
# Deflate, shuffle, Fletcher-32, szip, LZF; Blosc, LZ4, bitshuffle, Zstandard and Blosc 2 where `hdf5plugin` has them.
FILTERS = frozenset({1, 2, 3, 4, 32000, 32001, 32004, 32008, 32015, 32026})


@register_format(
    "hdf5",
    title="HDF5",
    recognizes=starts_with(MAGIC),
    isolated=True,
    packages=("h5py",),
    optional_packages=("hdf5plugin",),  # needed for DSEC's compression
)
def open_hdf5(path: Path, options: ReadOptions) -> EventSource:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            stored = _find(file, h5py)
            metadata, size = _metadata(file, h5py)
            length, cache = _check_datasets(file, stored, path.stat().st_size)
    except READ_ERRORS as error:
        raise ReadError.expected("file", "HDF5", f"damage ({error})") from error

    def read_events(source: EventSource) -> Iterator[Events]:
        columns = ColumnConverter(source, options.time_unit)
        # A chunk that does not fit into the cache would be decompressed again for every block of its rows.
        with h5py.File(path, "r", rdcc_nbytes=cache, rdcc_w0=1.0) as file:
            stored = _find(file, h5py)
            for at in range(0, length, BLOCK_WORDS):
                rows = _read(stored, slice(at, min(at + BLOCK_WORDS, length)))
                yield columns(rows, at) if isinstance(rows, dict) else columns.convert_rows(rows, at)

    return EventSource("hdf5", read_events, size, metadata)


def _read(stored: Any, part: slice) -> Any:
    """{x, y, t, p: column}, or rows [n, 4]."""
    try:
        if isinstance(stored, _Fields):
            rows = stored.dataset[part]
            return {ours: rows[theirs] for ours, theirs in stored.names.items()}
        return {name: dataset[part] for name, dataset in stored.items()} if isinstance(stored, dict) else stored[part]
    except READ_ERRORS as error:
        raise ReadError.expected(
            "events",
            f"readable data from event {part.start} on",
            str(error),
            hint="a compressed file, as of DSEC, may need the package hdf5plugin",
        ) from error


class _Fields(NamedTuple):
    """A compound dataset, and which of its fields are x, y, t and p."""

    dataset: Any
    names: dict[str, str]


def _node(file: Any, where: str, h5py: Any) -> Any:
    """The object at this path, or None. Links within the file are followed, external links are refused."""
    node, names, links = file, where.split("/"), 0
    while names:
        name = names.pop(0)
        if name in ("", "."):
            continue
        link = node.get(name, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            return None
        if isinstance(link, h5py.SoftLink):
            links += 1
            if links > MAX_LINKS or len(link.path) > MAX_MEMBERS:
                raise ReadError.expected(where, "data", "links in a circle")
            node = file if link.path.startswith("/") else node
            names = link.path.split("/") + names
        elif isinstance(link, h5py.HardLink):
            node = node[name]
        else:
            raise ReadError.expected(where, "data in the file itself", "data of another file")
    return node


def _find(file: Any, h5py: Any) -> Any:
    """{x, y, t, p: dataset}, or a compound dataset's fields, or a dataset [n, 4], or None."""
    known = {spelling for spellings in NAMES.values() for spelling in spellings}
    for name in GROUPS:
        node = _node(file, name, h5py)
        if isinstance(node, h5py.Group):
            if len(node) > MAX_MEMBERS:
                raise ReadError.expected(name, f"at most {MAX_MEMBERS} members", len(node))
            found = {key: _node(file, f"{name}/{key}", h5py) for key in node if key.strip().lower() in known}
            found = {key: value for key, value in found.items() if isinstance(value, h5py.Dataset)}
            named = find_columns(list(found))
            if named is not None:
                return {ours: found[theirs] for ours, theirs in named.items()}
        elif isinstance(node, h5py.Dataset) and node.dtype.names:
            named = find_columns(node.dtype.names)
            if named is not None:
                return _Fields(node, named)
        elif isinstance(node, h5py.Dataset) and node.ndim == 2 and node.shape[1] == 4:
            return node if node.dtype.kind in "iuf" else None
    return None


def _metadata(file: Any, h5py: Any) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """The file's metadata, and the sensor's size."""
    metadata = {}
    offset = _node(file, "t_offset", h5py)
    if isinstance(offset, h5py.Dataset):
        if offset.size != 1 or offset.dtype.kind not in "iu":
            raise ReadError.expected("t_offset", "one int", f"{offset.dtype} of shape {offset.shape}")
        _check_storage(offset)
        metadata["t_offset_us"] = int(offset[()].item())  # DSEC: times count from here
    return metadata, _resolution(file, _node(file, "events", h5py))


def _check_datasets(file: Any, stored: Any, size: int) -> tuple[int, int]:
    """The number of events, and the bytes of the largest chunk."""
    if stored is None:
        names = [str(name) for _, name in zip(range(8), file, strict=False)]
        raise ReadError.expected("events", EXPECTED, ", ".join(names) or "nothing")
    datasets = stored if isinstance(stored, dict) else {"events": getattr(stored, "dataset", stored)}
    chunk = max(_check_storage(dataset) for dataset in datasets.values())
    shapes = {name: tuple(dataset.shape) for name, dataset in datasets.items()}
    shape = next(iter(shapes.values()))
    if len(set(shapes.values())) != 1 or len(shape) != (1 if isinstance(stored, dict | _Fields) else 2):
        raise ReadError.expected("columns", "four of one length", shapes)
    check_expansion(shape[0], size)
    return int(shape[0]), max(MIN_CACHE_BYTES, chunk + 1)


def _resolution(file: Any, events: Any) -> tuple[int, int] | None:
    attributes: dict[str, Any] = {}
    for node in (file, events):
        for name in ("sensor_resolution", "resolution", "width", "height"):
            # A dataset with many values is not a size, and is not read.
            if node is not None and name in node.attrs and math.prod(node.attrs.get_id(name).shape or ()) <= 2:
                attributes[name] = node.attrs[name]
    size = attributes.get("sensor_resolution", attributes.get("resolution"))
    if size is not None and len(size) == 2 and all(int(side) > 0 for side in size):
        # rpg writes (height, width); a sensor is never taller than wide in these sets.
        return max(map(int, size)), min(map(int, size))
    if {"width", "height"} <= set(attributes):
        return int(attributes["width"]), int(attributes["height"])
    return None


def _check_storage(dataset: Any) -> int:
    """The bytes of a chunk, 0 for data that is not in chunks.

    A dataset can claim a size without stored data; unwritten data would be read as endless zeros.
    """
    chunk = 0
    name = str(dataset.name)
    if dataset.external or dataset.is_virtual:
        raise ReadError.expected(name, "data in the file itself", "data of another file")
    if dataset.dtype.itemsize > MAX_ROW_BYTES or dataset.dtype.hasobject:
        raise ReadError.expected(name, "numbers", str(dataset.dtype))
    if dataset.chunks is None:
        there = dataset.id.get_storage_size()
        whole = there >= dataset.size * dataset.dtype.itemsize
    else:
        chunk = _check_chunks(dataset)
        there = dataset.id.get_num_chunks()
        whole = there * math.prod(dataset.chunks) >= dataset.size
    if not whole:
        raise ReadError.expected(name, f"written data of shape {dataset.shape}", "less")
    return chunk


def _check_chunks(dataset: Any) -> int:
    """The bytes of a chunk, unpacked."""
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if size > MAX_CHUNK_BYTES:
        raise ReadError.expected(str(dataset.name), f"chunks of at most {MAX_CHUNK_BYTES} bytes", size)
    plist = dataset.id.get_create_plist()
    for number in range(plist.get_nfilters()):
        filter_id = plist.get_filter(number)[0]
        if filter_id not in FILTERS:
            raise ReadError.expected(str(dataset.name), f"a filter of {sorted(FILTERS)}", f"number {filter_id}")
    return size
