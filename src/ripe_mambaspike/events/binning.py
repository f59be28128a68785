"""Events → counts for the network, (T, 2, H, W). Every event is counted once; none is lost at an end or a border.

Steps are half-open. *By time*: T equal parts of [first, last + 1 µs), so that the last event is included. *By count*: T
parts with numbers of events as equal as possible. *By window*: parts of a fixed length, starting at the first event.

A grid smaller than the sensor maps each pixel to the cell that contains its centre, so cells differ by at most one row
or column of pixels. `spread` instead divides an event between the cells that its pixel overlaps, by area.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import (
    EVENT,
    MAX_SIDE,
    Events,
    Recording,
    check_inside,
    check_int,
    is_size,
    make_events,
)

if TYPE_CHECKING:
    from torch import Tensor

BinBy = Literal["time", "count", "window"]
CHUNK_EVENTS = 1 << 15  # events counted at a time, so that indices stay in the CPU cache
MAX_STEPS = 1 << 20


def bin_events(
    recording: Recording | Events,
    time_steps: int | None = None,
    *,
    by: BinBy = "time",
    window_us: int | None = None,
    grid: int | tuple[int, int] | None = None,
    binary: bool = False,
    spread: bool = False,
    start_us: int | None = None,
    stop_us: int | None = None,
    sensor_size: tuple[int, int] | None = None,
) -> "Tensor":
    """Count events in bins: [T, 2, H, W], float32, polarity 0 (OFF) first.

    Args:
        recording: a recording, or its events with the fields x, y, t and p
        time_steps: T; not needed with by="window"
        by: "time" for bins of equal duration, "count" for equal numbers of events, "window" for bins of `window_us`
        window_us: duration of a bin with by="window"
        grid: H and W as one side or (height, width); the sensor's own by default
        binary: store 1 for any number of events instead of their count
        spread: divide an event between the cells that its pixel overlaps, by area
        start_us: start of the span that is divided; by default the first event
        stop_us: its end; by default the last event
        sensor_size: (width, height), for events without a recording
    """
    import torch

    recording = as_recording(recording, sensor_size).ordered()
    height, width = as_grid(grid, recording.sensor_size)
    bounds = step_bounds(recording, time_steps, by, window_us, start_us, stop_us)
    cells = recording.sensor_size[::-1] if spread else (height, width)
    counts = torch.from_numpy(_count(recording, bounds, cells))
    if spread and cells != (height, width):
        rows, columns = _overlaps(cells[0], height), _overlaps(cells[1], width)
        counts = torch.from_numpy(rows) @ counts @ torch.from_numpy(columns.T.copy())
    return (counts > 0).to(counts.dtype) if binary else counts


def bin_batch(
    recordings: Sequence[Recording],
    time_steps: int,
    *,
    by: BinBy = "time",
    grid: int | tuple[int, int] | None = None,
    binary: bool = False,
    device: Any = None,
) -> "Tensor":
    """Counts of several recordings [B, T, 2, H, W], float32, computed on the device."""
    import torch

    if not recordings:
        raise InputError.expected("recordings", "at least one", "none")
    if by not in ("time", "count"):
        raise InputError.expected("by", "'time' or 'count' for a batch", repr(by))
    time_steps = check_int("time_steps", time_steps, 1, MAX_STEPS)
    sizes = sorted({recording.sensor_size for recording in recordings})
    if grid is None and len(sizes) > 1:
        raise InputError.expected("grid", f"a grid for recordings of sensors {sizes}", "none")
    height, width = as_grid(grid, sizes[0])
    where = torch.device("cpu" if device is None else device)
    if where.type == "cpu":
        each = (
            bin_events(recording, time_steps, by=by, grid=(height, width), binary=binary) for recording in recordings
        )
        return torch.stack(list(each))
    if by == "count":  # the order must be known before events are numbered
        recordings = [recording.ordered() for recording in recordings]
    if not all(map(len, recordings)):
        raise InputError.expected("events", "at least one in each recording", "none")
    counts = count_on_device(recordings, time_steps, by, (height, width), where)
    return (counts > 0).to(counts.dtype) if binary else counts


def step_bounds(
    recording: Recording,
    time_steps: int | None,
    by: BinBy,
    window_us: int | None,
    start_us: int | None,
    stop_us: int | None,
) -> list[int]:
    """Index of each step's first event in the ordered events, and the end of the last step: T + 1 numbers."""
    count = len(recording)
    if by not in ("time", "count", "window"):
        raise InputError.expected("by", "'time', 'count' or 'window'", repr(by))
    parts = 0 if time_steps is None and by == "window" else check_int("time_steps", time_steps, 1, MAX_STEPS)
    if window_us is not None:
        window_us = check_int("window_us", window_us, 1)
    if (window_us is not None) != (by == "window"):
        wanted = "a length with by='window'" if by == "window" else f"none with by={by!r}"
        raise InputError.expected("window_us", wanted, window_us)
    if by == "count":
        if start_us is not None or stop_us is not None:
            raise InputError.expected("start_us", "no start_us and stop_us with by='count'", (start_us, stop_us))
        return [index * count // parts for index in range(parts + 1)]
    if not count and (start_us is None or (stop_us is None and by == "time")):
        raise InputError.expected("events", "at least one, or start_us and stop_us", "none")
    start = recording.first_us if start_us is None else int(start_us)
    stop = recording.last_us + 1 if stop_us is None else int(stop_us)
    if stop <= start:
        raise InputError.expected("stop_us", f"a time after start_us, {start}", stop)
    if window_us is not None:
        edges = _window_edges(start, stop, window_us, parts, stop_us)
    else:
        edges = [start + -(-index * (stop - start) // parts) for index in range(parts + 1)]
    bounds = np.searchsorted(recording["t"], edges).tolist()
    if bounds[0] or bounds[-1] < count:
        raise InputError.expected(
            "start_us" if bounds[0] else "stop_us",
            f"all events from {edges[0]} to {edges[-1]} µs",
            f"{bounds[0]} before and {count - bounds[-1]} after",
            hint="crop the recording, or widen the span",
        )
    return bounds


def as_grid(grid: int | tuple[int, int] | None, sensor_size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of the counts."""
    sides: Any = sensor_size[::-1] if grid is None else (grid, grid) if isinstance(grid, int | np.integer) else grid
    if not is_size(sides):
        raise InputError.expected("grid", f"one int or two from 1 to {MAX_SIDE}", repr(grid))
    return int(sides[0]), int(sides[1])


def _window_edges(start: int, stop: int, window: int, parts: int, stop_us: int | None) -> list[int]:
    needed = -(-(stop - start) // window)
    parts = parts or needed
    if parts > MAX_STEPS:
        raise InputError.expected("window_us", f"at most {MAX_STEPS:,} steps", f"{window}, which makes {parts:,}")
    if stop_us is not None and parts < needed:
        raise InputError.expected("time_steps", f"at least {needed} of {window} µs from {start} to {stop} µs", parts)
    return [start + index * window for index in range(parts + 1)]


def _count(recording: Recording, bounds: list[int], cells: tuple[int, int]) -> NDArray[np.float32]:
    """Counts [T, 2, H, W] of ordered events."""
    height, width = cells
    counts = np.zeros((len(bounds) - 1, 2 * height * width), np.float32)
    scaled = (width, height) != recording.sensor_size
    columns, rows = cell_table(recording.sensor_size, cells)
    for step, (first, end) in enumerate(pairwise(bounds)):
        for start in range(first, end, CHUNK_EVENTS):
            part = recording.events[start : min(start + CHUNK_EVENTS, end)]
            if scaled:
                index = rows[part["y"]]
                index += columns[part["x"]]
            else:
                index = part["y"].astype(np.int64)
                index *= width
                index += part["x"]
            sign = part["p"].astype(np.int64)
            sign *= height * width
            index += sign
            counts[step] += np.bincount(index, minlength=2 * height * width)
    return counts.reshape(-1, 2, height, width)


def cell_of(pixel: Any, pixels: Any, cells: int) -> Any:
    """The grid cell that contains the pixel's centre; numbers, arrays or tensors."""
    return (2 * pixel + 1) * cells // (2 * pixels)


def cell_table(sensor_size: tuple[int, int], grid: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The index of the cell of pixel (x, y) in the flattened grid is columns[x] + rows[y]."""
    columns, rows = (cell_of(np.arange(side), side, cells) for side, cells in zip(sensor_size, grid[::-1], strict=True))
    return columns, rows * grid[1]


def _overlaps(pixels: int, cells: int) -> NDArray[np.float32]:
    """The share of each pixel that lies in each cell [cells, pixels]; every column sums to 1."""
    pixel = np.arange(pixels) * cells  # in units in which both grids have integer sides
    cell = np.arange(cells)[:, None] * pixels
    shared = np.minimum(pixel + cells, cell + pixels) - np.maximum(pixel, cell)
    return (np.maximum(shared, 0) / cells).astype(np.float32)


def as_recording(recording: Recording | Events, sensor_size: tuple[int, int] | None) -> Recording:
    """The events as a Recording, after checking that all of them lie on its sensor."""
    if not isinstance(recording, Recording):
        if sensor_size is None:
            raise InputError.expected("sensor_size", "a width and a height with plain events", sensor_size)
        recording = Recording(np.asarray(recording), sensor_size)
    elif sensor_size is not None:
        recording = replace(recording, sensor_size=sensor_size)
    check_inside(recording)
    return recording


def count_on_device(
    recordings: Sequence[Recording], time_steps: int, by: BinBy, grid: tuple[int, int], device: Any
) -> "Tensor":
    """Counts [B, T, 2, H, W] by operations of the device."""
    import torch

    batch, (height, width) = len(recordings), grid
    lengths = [len(recording) for recording in recordings]
    total = sum(lengths)
    raw = _upload(recordings, total, device)
    x, y, p = raw[:, 0] | raw[:, 1].long() << 8, raw[:, 2] | raw[:, 3].long() << 8, raw[:, 12].long()
    time = raw[:, 4:12].contiguous().view(torch.int64).squeeze(1)
    on_device = torch.tensor([lengths, *zip(*(one.sensor_size for one in recordings), strict=True)], device=device)
    index = torch.repeat_interleave(torch.arange(batch, device=device), on_device[0], output_size=total)
    columns, rows = on_device[1][index], on_device[2][index]
    if bool(((x >= columns) | (y >= rows) | (p > 1)).any()):
        for recording in recordings:
            check_inside(recording)  # raises an error that names the recording and the reason
    if by == "time":
        first = torch.full((batch,), torch.iinfo(torch.int64).max, device=device).scatter_reduce(0, index, time, "amin")
        last = torch.full((batch,), torch.iinfo(torch.int64).min, device=device).scatter_reduce(0, index, time, "amax")
        step = (time - first[index]) * time_steps // (last - first + 1)[index]
    else:
        # Step k begins at event ⌊k n / T⌋; event i is in the last step that begins at or before it.
        begins = torch.cumsum(on_device[0], 0) - on_device[0]
        number = torch.arange(total, device=device) - begins[index]
        step = ((number + 1) * time_steps - 1) // on_device[0][index]
    cell = ((index * time_steps + step) * 2 + p) * height + cell_of(y, rows, height)
    cell = cell * width + cell_of(x, columns, width)
    counts = torch.zeros(batch * time_steps * 2 * height * width, device=device)
    # Integers below 2²⁴ sum to the same float32 in any order.
    counts.scatter_add_(0, cell, torch.ones((), device=device).expand(total))
    return counts.view(batch, time_steps, 2, height, width)


def _upload(recordings: Sequence[Recording], total: int, device: Any) -> "Tensor":
    """The events' bytes [n, 13] on the device, where splitting them into fields is cheaper."""
    import torch

    buffer = torch.empty(total * EVENT.itemsize, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = buffer.numpy()
    at = 0
    for recording in recordings:
        events = recording.events
        plain = events if events.dtype == EVENT else make_events(*(events[name] for name in "xytp"))
        data = np.ascontiguousarray(plain).view(np.uint8)  # bytes copy faster than records
        there[at : at + len(data)] = data
        at += len(data)
    return buffer.to(device, non_blocking=True).view(total, EVENT.itemsize)
