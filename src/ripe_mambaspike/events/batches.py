"""Bin a batch of recordings on a device. The counts are exactly those of binning each recording on its own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.binning import MAX_STEPS, BinBy, as_grid, bin_events
from ripe_mambaspike.events.recording import EVENT, Recording, check_inside, make_events

if TYPE_CHECKING:
    from torch import Tensor


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
    if not isinstance(time_steps, int | np.integer) or not 1 <= time_steps <= MAX_STEPS:
        raise InputError.expected("time_steps", f"an int from 1 to {MAX_STEPS}", repr(time_steps))
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
    counts = _count(recordings, int(time_steps), by, (height, width), where)
    return (counts > 0).to(counts.dtype) if binary else counts


def _count(recordings: Sequence[Recording], time_steps: int, by: BinBy, grid: tuple[int, int], device: Any) -> "Tensor":
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
    cell = (((index * time_steps + step) * 2 + p) * height + _cell(y, rows, height)) * width + _cell(x, columns, width)
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


def _cell(pixel: "Tensor", pixels: "Tensor", cells: int) -> "Tensor":
    """The grid cell that contains each pixel's centre."""
    return (2 * pixel + 1) * cells // (2 * pixels)
