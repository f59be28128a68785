"""A recording: its events, the size of the sensor, and where they came from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ripe_mambaspike.errors import InputError

EVENT = np.dtype([("x", "<u2"), ("y", "<u2"), ("t", "<i8"), ("p", "u1")])
Events = NDArray[np.void]
LIMITS = {"x": (0, 65535), "y": (0, 65535), "t": (-(2**62), 2**62), "p": (0, 1)}
MAX_SIDE = 65536  # pixels of a sensor or a grid, along a side
SIZE_EXPECTED = f"a width and a height from 1 to {MAX_SIDE}"


class RecordingWarning(UserWarning):
    """A problem with a recording that did not prevent it from being read."""


def is_int(value: Any, low: int, high: float = math.inf) -> bool:
    """Whether the value is an integer, Python's or NumPy's, from `low` to `high`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(low <= value <= high)


def check_int(field: str, value: Any, low: int, high: int | None = None) -> int:
    """The value as an int; raises InputError unless it is an integer from `low` to `high`."""
    if not is_int(value, low, math.inf if high is None else high):
        expected = f"an int of at least {low}" if high is None else f"an int from {low} to {high}"
        raise InputError.expected(field, expected, repr(value))
    return int(value)


def is_size(size: Any, most: int = MAX_SIDE) -> bool:
    """Whether this is a pair of integers from 1 to `most`."""
    return isinstance(size, tuple | list) and len(size) == 2 and all(is_int(side, 1, most) for side in size)


def make_events(x: ArrayLike, y: ArrayLike, t: ArrayLike, p: ArrayLike) -> Events:
    """Four columns of one length as a structured array of events."""
    columns = [np.asarray(column) for column in (x, y, t, p)]
    lengths = {len(column) if column.ndim == 1 else column.shape for column in columns}
    if len(lengths) != 1 or columns[0].ndim != 1:
        raise InputError.expected("events", "columns of one length", f"shapes {[column.shape for column in columns]}")
    for name, column in zip("xytp", columns, strict=True):
        if column.dtype.kind not in "iufb" and len(column):
            raise InputError.expected(name, "integers", str(column.dtype))
        low, high = LIMITS[name]
        # NaN compares as false, and is refused with the rest.
        if len(column) and not (low <= column.min() and column.max() <= high):
            raise InputError.expected(name, f"values from {low} to {high}", f"{column.min()} to {column.max()}")
        if column.dtype.kind == "f" and (column != np.floor(column)).any():
            raise InputError.expected(name, "integers", "fractions")
    return pack_events(*columns)


def pack_events(x: Any, y: Any, t: Any, p: Any) -> Events:
    """Four columns of one length as events, without checks."""
    events = np.empty(len(x), EVENT)
    events["x"], events["y"], events["t"], events["p"] = x, y, t, p
    return events


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """Events of one sensor, in the order of the file they came from.

    `recording["t"]` is the column of the times, and `len(recording)` the number of events.

    Args:
        events: structured array with the fields x, y (pixels), t (µs) and p (0 OFF, 1 ON)
        sensor_size: (width, height)
        format: name of the file format it was read from
        metadata: what the file says beside its events
        warnings: problems that did not prevent it from being read
    """

    events: Events  # structured: x, y, t (µs), p
    sensor_size: tuple[int, int]  # (width, height)
    format: str = "memory"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = self.events.dtype.names or ()
        if self.events.ndim != 1 or not {"x", "y", "t", "p"} <= set(names):
            got = f"shape {self.events.shape} with the fields {names}"
            raise InputError.expected("events", "a one-dimensional array with the fields x, y, t, p", got)
        if not is_size(self.sensor_size):
            raise InputError.expected("sensor_size", SIZE_EXPECTED, self.sensor_size)

    def __repr__(self) -> str:
        width, height = self.sensor_size
        return f"Recording({len(self):,} events, {width}×{height}, {self.duration_us / 1e6:g} s, {self.format})"

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One column: `recording["t"]`."""
        return self.events[name]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.events, dtype=dtype, copy=copy)

    @property
    def first_us(self) -> int:
        """The earliest time; 0 for a recording without events."""
        return int(self.events["t"].min()) if len(self) else 0

    @property
    def last_us(self) -> int:
        """The latest time; 0 for a recording without events."""
        return int(self.events["t"].max()) if len(self) else 0

    @property
    def duration_us(self) -> int:
        """From the earliest event to the latest."""
        return self.last_us - self.first_us

    def in_order(self) -> bool:
        """Whether the events are sorted by time."""
        times = self.events["t"]
        return bool((times[1:] >= times[:-1]).all())

    def ordered(self) -> "Recording":
        """The recording with its events sorted by time (stable)."""
        if self.in_order():
            return self
        return replace(self, events=self.events[np.argsort(self.events["t"], kind="stable")])

    def turned(self) -> "Recording":
        """Rotated by 180°, for an upside-down camera or a format that does not define which way is up."""
        events = self.events.copy()
        for name, side in zip("xy", self.sensor_size, strict=True):
            events[name] = side - 1 - events[name].astype(np.int64)
        return replace(self, events=events)

    def crop(self, start_us: int, stop_us: int) -> "Recording":
        """The events with start ≤ t < stop."""
        times = self.events["t"]
        return replace(self, events=self.events[(times >= start_us) & (times < stop_us)])


def check_inside(recording: Recording) -> None:
    """Raise unless every event is on the sensor and every polarity is 0 or 1."""
    events, (width, height) = recording.events, recording.sensor_size
    if not len(events):
        return
    right, bottom = int(events["x"].max()), int(events["y"].max())
    if right >= width or bottom >= height or min(int(events["x"].min()), int(events["y"].min())) < 0:
        raise InputError.expected(
            "events", f"events inside the {width}×{height} sensor", f"some at ({right}, {bottom})"
        )
    if not np.isin((events["p"].min(), events["p"].max()), (0, 1)).all():
        raise InputError.expected("p", "0 and 1", f"values from {events['p'].min()} to {events['p'].max()}")
