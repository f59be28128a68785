"""Events → counts for the network, (T, 2, H, W). Every event is counted once; none is lost at an end or a border.

Steps are half-open. *By time*: T equal parts of [first, last + 1 µs), so that the last event is included. *By count*: T
parts with numbers of events as equal as possible. *By window*: parts of a fixed length, starting at the first event.

A grid smaller than the sensor maps each pixel to the cell that contains its centre, so cells differ by at most one row
or column of pixels. `spread` instead divides an event between the cells that its pixel overlaps, by area.
"""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events, Recording, check_inside

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
    """Counts [T, 2, H, W], float32; polarity 0 (OFF) first.

    `grid` is one side or (height, width), the sensor's own by default. `start_us` and `stop_us` give the span to divide
    by time, by default from the first event to the last. `binary` stores 1 for any number of events.
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
    if time_steps is None and by != "window":
        raise InputError.expected("time_steps", "an int of at least 1", time_steps)
    if time_steps is not None and (not isinstance(time_steps, int | np.integer) or not 1 <= time_steps <= MAX_STEPS):
        raise InputError.expected("time_steps", f"an int from 1 to {MAX_STEPS}", repr(time_steps))
    if window_us is not None and (not isinstance(window_us, int | np.integer) or window_us < 1):
        raise InputError.expected("window_us", "an int of at least 1", repr(window_us))
    if (window_us is not None) != (by == "window"):
        wanted = "a length with by='window'" if by == "window" else f"none with by={by!r}"
        raise InputError.expected("window_us", wanted, window_us)
    if by == "count":
        if start_us is not None or stop_us is not None:
            raise InputError.expected("start_us", "no start_us and stop_us with by='count'", (start_us, stop_us))
        return [index * count // int(time_steps or 1) for index in range(int(time_steps or 1) + 1)]
    if not count and (start_us is None or (stop_us is None and by == "time")):
        raise InputError.expected("events", "at least one, or start_us and stop_us", "none")
    start = recording.first_us if start_us is None else int(start_us)
    stop = recording.last_us + 1 if stop_us is None else int(stop_us)
    if stop <= start:
        raise InputError.expected("stop_us", f"a time after start_us, {start}", stop)
    if window_us is not None:
        edges = _window_edges(start, stop, int(window_us), time_steps, stop_us)
    else:
        parts = int(time_steps or 1)
        edges = [start + -(-index * (stop - start) // parts) for index in range(parts + 1)]
    times = recording.events["t"]
    bounds = np.searchsorted(times, edges).tolist()
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
    if (
        not isinstance(sides, tuple | list)
        or len(sides) != 2
        or not all(isinstance(side, int | np.integer) and 1 <= side <= 65536 for side in sides)
    ):
        raise InputError.expected("grid", "one int or two from 1 to 65536", repr(grid))
    return int(sides[0]), int(sides[1])


def _window_edges(start: int, stop: int, window: int, time_steps: int | None, stop_us: int | None) -> list[int]:
    needed = -(-(stop - start) // window)
    parts = needed if time_steps is None else int(time_steps)
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
    columns, rows = _cells(recording.sensor_size[0], width), _cells(recording.sensor_size[1], height) * width
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


def _cells(pixels: int, cells: int) -> NDArray[np.int64]:
    """The grid cell that contains each pixel's centre [pixels]."""
    return (2 * np.arange(pixels) + 1) * cells // (2 * pixels)


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
