"""Columns of numbers → events. Handles the column names, time units and polarity signs that are in common use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.recording import Events, pack_events
from ripe_mambaspike.events.source import MAX_TIME, TIME_UNITS, EventSource

MAX_COORDINATE = 65535
ORDER_ROWS = 4096  # rows used to guess the order of unnamed columns
OFF_ANY_SENSOR = "had a coordinate below 0 or above 65535"
NAMES = {
    "x": ("x", "xs", "x_pos", "x_position", "col", "column"),
    "y": ("y", "ys", "y_pos", "y_position", "row"),
    "t": ("t", "ts", "time", "timestamp", "timestamps", "t_us", "time_us"),
    "p": ("p", "ps", "pol", "polarity", "polarities", "on", "sign"),
}


def find_columns(names: Sequence[str]) -> dict[str, str] | None:
    """Map x, y, t and p to column names; None if one of them is missing."""
    lower = {name.strip().lower(): name for name in names}
    found = {}
    for field, spellings in NAMES.items():
        known = [lower[spelling] for spelling in spellings if spelling in lower]
        if not known:
            return None
        found[field] = known[0]
    return found


def guess_order(table: NDArray[Any]) -> str | None:
    """The order of four unnamed columns [n, 4]: 'txyp', 'xytp' or 'xypt'; None if it is ambiguous.

    Polarity has two values; time is the column that never decreases and has the largest range.
    """
    fits = []
    for order in ("txyp", "xytp", "xypt"):
        t, p = table[:, order.index("t")], table[:, order.index("p")]
        x, y = table[:, order.index("x")], table[:, order.index("y")]
        if not np.isin(p, (-1, 0, 1)).all() or max(np.mean(x < 0), np.mean(y < 0)) > 0.05:
            continue
        if (x != np.floor(x)).any() or (y != np.floor(y)).any():
            continue
        fits.append((float(np.mean(t[1:] < t[:-1])) if len(t) > 1 else 0.0, order))
    fits = [fit for fit in fits if fit[0] <= 0.05 and fit[0] == min(fits)[0]]
    if len(fits) > 1:
        # A constant column never decreases either, but a time has to increase.
        spans = {order: float(np.ptp(table[:, order.index("t")])) for _, order in fits}
        widest = [order for order, span in spans.items() if span == max(spans.values())]
        return widest[0] if len(widest) == 1 else None
    return fits[0][1] if fits else None


def column_order(table: NDArray[Any]) -> str:
    """`guess_order` on the first rows; raises if the order is ambiguous."""
    order = guess_order(table[:ORDER_ROWS])
    if order is None:
        raise ReadError.expected("columns", "columns with names x, y, t, p", "four without, of unclear order")
    return order


@dataclass
class ColumnConverter:
    """Converts columns to events. The time unit and the order of unnamed columns are decided on the first chunk."""

    source: EventSource
    time_unit: str | None = None
    order: Sequence[str] | None = None  # of the columns of a table

    def convert_rows(self, table: NDArray[Any], start: int) -> Events:
        """Convert the rows [n, columns] of a table; `start` is the index of the first."""
        self.order = self.order or column_order(table)
        self.source.metadata["columns"] = "".join(self.order)
        return self({name: table[:, self.order.index(name)] for name in "xytp"}, start)

    def __call__(self, columns: Mapping[str, NDArray[Any]], start: int) -> Events:
        """Convert one chunk; `start` is the index of its first event, for error messages."""
        lengths = {name: column.shape for name, column in columns.items()}
        if len(set(lengths.values())) != 1 or any(len(shape) != 1 for shape in lengths.values()):
            raise ReadError.expected("columns", "four of one length", lengths)
        x, y = (self._whole(name, columns[name], start) for name in "xy")
        p = self._whole("p", columns["p"], start, -1, 1)
        t = self._times(columns["t"], start)
        off = (x < 0) | (y < 0) | (x > MAX_COORDINATE) | (y > MAX_COORDINATE)
        if off.any():
            self.source.leave_out(off.sum(), OFF_ANY_SENSOR)
            x, y, t, p = x[~off], y[~off], t[~off], p[~off]
        return pack_events(x, y, t, p > 0)

    def _whole(
        self, name: str, column: NDArray[Any], start: int, low: float = -np.inf, high: float = np.inf
    ) -> NDArray[Any]:
        if column.dtype.kind not in "iufb":
            raise ReadError.expected(name, "numbers", str(column.dtype))
        if column.dtype == np.float16:  # a dtype that cannot represent 65535
            column = column.astype(np.float32)
        bad = ~((column >= low) & (column <= high)) if column.dtype.kind != "b" else np.zeros(len(column), bool)
        if column.dtype.kind == "f":
            bad |= (column != np.floor(column)) | np.isinf(column)
        if bad.any():
            at = int(np.argmax(bad))
            wanted = "integers" if np.isinf(low) else f"integers from {low} to {high}"
            raise ReadError.expected(name, wanted, f"{column[at]} in event {start + at}")
        return column

    def _times(self, column: NDArray[Any], start: int) -> NDArray[np.int64]:
        if column.dtype.kind not in "iuf":
            raise ReadError.expected("t", "numbers", str(column.dtype))
        if self.time_unit is None:
            self.time_unit = _likely_unit(column)
        self.source.metadata["time_unit"] = self.time_unit
        scale = TIME_UNITS[self.time_unit]
        if column.dtype.kind in "iu" and scale == 1.0:
            bad = (column >= MAX_TIME) | (column <= -MAX_TIME) if column.dtype.itemsize == 8 else np.zeros(0, bool)
            times: NDArray[Any] = column
        else:
            times = np.rint(column.astype(np.float64) * scale)
            bad = ~(np.abs(times) < MAX_TIME)
        if bad.any():
            at = int(np.argmax(bad))
            raise ReadError.expected("t", "times within ±2⁶² µs", f"{column[at]} in event {start + at}")
        return times.astype(np.int64)


def _likely_unit(column: NDArray[Any]) -> str:
    """Integer times are µs, fractional ones are seconds."""
    finite = column[np.isfinite(column)] if column.dtype.kind == "f" else column
    return "us" if bool((finite == np.floor(finite)).all()) else "s"
