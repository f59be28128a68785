"""HDF5, by the package `h5py`: DSEC (`events/x …`, `t_offset`), rpg (`events/xs …` in seconds), v2e (`events` [n, 4]),
and a compound dataset with named fields."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.columns import Columns, find_columns, guess_order
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.source import BLOCK, Options, Source

FORMAT = "hdf5"
MAGIC = b"\x89HDF\r\n\x1a\n"
GROUPS = ("events", "CD/events", "dvs/events", "prophesee/left", "davis/left/events", "/")
TROUBLE = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError)  # what h5py raises
WANTED = "datasets x, y, t, p in a group events, or a dataset events with four columns, are wanted"


def recognises(head: bytes, path: Path) -> bool:
    return head.startswith(MAGIC)


def open_source(path: Path, options: Options) -> Source:
    try:
        import h5py
    except ImportError as error:
        raise ReadError(f"{path} is HDF5, which needs the package h5py; install ripe-mambaspike[data]") from error
    with suppress(ImportError):
        import hdf5plugin  # noqa: F401  (what DSEC is compressed with, where it is installed)
    source = Source(FORMAT, lambda: iter(()))
    try:
        with h5py.File(path, "r") as file:
            length = _describe(file, _find(file, h5py), source, path, h5py)
    except TROUBLE as error:
        raise ReadError(f"{path} is damaged HDF5: {error}") from error

    def pieces() -> Iterator[Events]:
        columns = Columns(str(path), source, options.time_unit)
        order = ""
        with h5py.File(path, "r") as file:
            holder = _find(file, h5py)
            for at in range(0, length, BLOCK):
                rows = _read(holder, slice(at, min(at + BLOCK, length)), path)
                if not isinstance(rows, dict):
                    order = order or guess_order(rows[:4096]) or ""
                    if not order:
                        raise ReadError(f"{path} has four columns without names, whose order its values do not tell")
                    rows = {name: rows[:, order.index(name)] for name in "xytp"}
                yield columns(rows, at)
        source.metadata["time_unit"] = columns.time_unit

    source.pieces = pieces
    return source


def _read(holder: Any, part: slice, path: Path) -> Any:
    """{x, y, t, p: column}, or rows [n, 4]."""
    try:
        return {name: dataset[part] for name, dataset in holder.items()} if isinstance(holder, dict) else holder[part]
    except TROUBLE as error:
        raise ReadError(
            f"{path} cannot be read from event {part.start} on: {error} "
            "(a compressed file, as of DSEC, may need the package hdf5plugin)"
        ) from error


class _Field:
    """One field of a compound dataset, sliced like a dataset of its own."""

    def __init__(self, dataset: Any, name: str) -> None:
        self.dataset, self.name = dataset, name
        self.shape = dataset.shape

    def __getitem__(self, part: slice) -> Any:
        return self.dataset[part][self.name]


def _find(file: Any, h5py: Any) -> Any:
    """{x, y, t, p: dataset}, or a dataset [n, 4], or None."""
    for name in GROUPS:
        node = file.get(name)
        if isinstance(node, h5py.Group):
            named = find_columns([key for key, value in node.items() if isinstance(value, h5py.Dataset)])
            if named is not None:
                return {ours: node[theirs] for ours, theirs in named.items()}
        elif isinstance(node, h5py.Dataset) and node.dtype.names:
            named = find_columns(node.dtype.names)
            if named is not None:
                return {ours: _Field(node, theirs) for ours, theirs in named.items()}
        elif isinstance(node, h5py.Dataset) and node.ndim == 2 and node.shape[1] == 4:
            return node if node.dtype.kind in "iuf" else None
    return None


def _describe(file: Any, holder: Any, source: Source, path: Path, h5py: Any) -> int:
    """Fill in what the file says about itself; the number of events."""
    if holder is None:
        raise ReadError(f"{path} holds {', '.join(list(file)[:8]) or 'nothing'}; {WANTED}")
    if isinstance(file.get("t_offset"), h5py.Dataset):
        source.metadata["t_offset_us"] = int(file["t_offset"][()])  # DSEC: times count from here
    attributes = {**dict(file.attrs), **dict(file["events"].attrs if "events" in file else {})}
    size = attributes.get("sensor_resolution", attributes.get("resolution"))
    if size is not None and len(size) == 2 and all(int(side) > 0 for side in size):
        # rpg writes (height, width); a sensor is never taller than wide in these sets.
        source.sensor_size = (max(map(int, size)), min(map(int, size)))
    elif {"width", "height"} <= set(attributes):
        source.sensor_size = (int(attributes["width"]), int(attributes["height"]))
    for dataset in holder.values() if isinstance(holder, dict) else [holder]:
        _check_storage(getattr(dataset, "dataset", dataset), path)
    if not isinstance(holder, dict):
        return int(holder.shape[0])
    shapes = {name: tuple(dataset.shape) for name, dataset in holder.items()}
    if len(set(shapes.values())) != 1 or len(shapes["t"]) != 1:
        raise ReadError(f"{path} has columns of the shapes {shapes}; four of one length are wanted")
    return int(shapes["t"][0])


def _check_storage(dataset: Any, path: Path) -> None:
    """A size can be claimed without a byte behind it: what was never written would be read as zeros without end."""
    if dataset.chunks is None:
        there = dataset.id.get_storage_size()
        whole = there >= dataset.size * dataset.dtype.itemsize
    else:
        there = dataset.id.get_num_chunks()
        whole = there * math.prod(dataset.chunks) >= dataset.size
    if not whole:
        raise ReadError(f"{path} says {dataset.name} has the shape {dataset.shape}, of which not all was written")
