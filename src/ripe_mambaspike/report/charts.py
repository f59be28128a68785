"""Line charts, histograms and the confusion matrix as inline SVG: the geometry is computed here, the markup is in
templates/charts.html.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ripe_mambaspike.report.formatting import number_text, report_templates

WIDTH, HEIGHT = 380, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 16, 34  # margins of a line chart
MAX_DRAWN_VALUE = 1e100  # larger values are marked like those that are not finite
MAX_NUMBERED_CLASSES = 11  # classes up to which the matrix shows its counts
MAX_NAMED_CLASSES = 40  # classes up to which it shows names
MAX_NAME_CHARS = 30  # letters of a name beside the matrix
HISTOGRAM_BINS = 17
Value = float | None


@dataclass(frozen=True)
class Series:
    """One line: a gap where a value is not finite; where it is None the line continues to the next value."""

    name: str
    values: Sequence[Value]
    tone: int  # colour, from 1
    dashed: bool = False

    @property
    def style(self) -> str:
        return f"line t{self.tone}{' dashed' if self.dashed else ''}"


@dataclass(frozen=True)
class Axis:
    """A range of values and where it lies in the picture."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else ticks(self.low, self.high, about)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers in a range, about `about` of them."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [10.0**power for power in powers if low * 0.999 <= 10.0**power <= high * 1.001]
    if len(found) < 2:
        found = [d * 10.0**p for p in powers for d in (1, 2, 5) if low * 0.999 <= d * 10.0**p <= high * 1.001]
    return found[:: -(-len(found) // 6)]


def is_drawable(value: float) -> bool:
    return math.isfinite(value) and abs(value) < MAX_DRAWN_VALUE


def value_axis(
    values: Sequence[float], log: bool, low: float | None, high: float | None, ceiling: float = math.inf
) -> Axis:
    """The y axis for these values, or with given ends.

    `log` allows a logarithmic axis, taken where the values span two powers of ten. The margin above the values ends at
    the ceiling.
    """
    least, most = min(values), max(values)
    if log and 1 / MAX_DRAWN_VALUE < least < most / 100:
        return Axis(least / 1.15, most * 1.15, HEIGHT - BOTTOM, TOP, True)
    least = least if low is None else min(low, least)
    most = most if high is None else max(high, most)
    if most - least <= 1e-12 * max(abs(most), abs(least), 1 / MAX_DRAWN_VALUE):
        around = abs(most) / 10 if abs(most) > 1 / MAX_DRAWN_VALUE else 1.0
        least, most = least - around, most + around
    else:
        margin = 0.06 * (most - least)
        least = least - margin if low is None else least
        most = max(most, min(most + margin, ceiling)) if high is None else most
    return Axis(least, most, HEIGHT - BOTTOM, TOP)


def line_chart(
    title: str,
    x: Sequence[float],
    series: Sequence[Series],
    *,
    x_name: str,
    note: str = "",
    percent: bool = False,
    log: bool = False,
    low: float | None = None,
    high: float | None = None,
    mark: tuple[float, str] | None = None,
) -> Markup:
    """A figure with a legend, or a sentence if there is no finite value. `mark` is a labelled x position."""
    chart: dict[str, Any] = {"title": title, "note": note, "lines": []}
    values = [value for one in series for value in one.values if value is not None and is_drawable(value)]
    if not values:
        return _draw("line_chart", chart)
    least, most = min(x), max(x)
    single = most <= least
    across = Axis(least - 0.5, most + 0.5, LEFT, WIDTH - RIGHT) if single else Axis(least, most, LEFT, WIDTH - RIGHT)
    up = value_axis(values, log, low, high, 1.0 if percent else math.inf)
    x_ticks = [tick for tick in across.ticks() if across.high - across.low < 2 or tick == int(tick)]
    chart |= {
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM,
        "x_name": x_name,
        "description": f"{title}: {', '.join(one.name for one in series)}",
        "y_ticks": list(zip([round(up.at(tick), 1) for tick in up.ticks()], _labels(up.ticks(), percent), strict=True)),
        "x_ticks": [(round(across.at(tick), 1), number_text(tick)) for tick in ([least] if single else x_ticks)],
        "mark": _mark(across, mark),
        "lines": [_line(one, x, across, up, percent) for one in series],
        "gaps": [round(across.at(value), 1) for value in sorted(_gaps(x, series))],
        "data": {
            "name": x_name,
            "x": [round(across.at(value), 1) for value in x],
            "at": [number_text(value) for value in x],
            "lines": [
                {"name": one.name, "tone": one.tone, "values": [_value(value, percent) for value in one.values]}
                for one in series
            ],
        },
    }  # fmt: skip
    return _draw("line_chart", chart)


def _draw(macro: str, drawing: dict[str, Any]) -> Markup:
    drawn: Markup = getattr(report_templates().get_template("charts.html").module, macro)(drawing)
    return drawn


def _value(value: Value, percent: bool) -> str:
    if value is not None and percent and math.isfinite(value):
        return f"{number_text(100 * value)} %"
    return number_text(value)


def _labels(values: Sequence[float], percent: bool) -> list[str]:
    """Labels of the ticks, with as many digits as make them distinct."""
    labels: list[str] = []
    for digits in range(3, 9):
        labels = [f"{number_text(100 * value, digits)}%" if percent else number_text(value, digits) for value in values]
        if len(set(labels)) == len(labels):
            break
    return labels


def _mark(across: Axis, mark: tuple[float, str] | None) -> dict[str, Any] | None:
    if mark is None or not across.low <= mark[0] <= across.high:
        return None
    x = across.at(mark[0])
    return {"x": round(x, 1), "anchor": "end" if x > WIDTH * 0.9 else "middle", "text": mark[1]}


def _line(one: Series, x: Sequence[float], across: Axis, up: Axis, percent: bool) -> dict[str, Any]:
    """The pieces of a line between values that are not finite; a piece of one point is a dot."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for at, value in zip(x, one.values, strict=False):
        if value is None:
            continue
        if is_drawable(value) and not (up.log and value <= 0):
            pieces[-1].append((round(across.at(at), 1), round(up.at(value), 1)))
        elif pieces[-1]:
            pieces.append([])
    return {
        "name": one.name,
        "tone": one.tone,
        "style": one.style,
        "last": _value(next((value for value in reversed(one.values) if value is not None), None), percent),
        "paths": ["L".join(f"{a:.1f} {b:.1f}" for a, b in piece) for piece in pieces if len(piece) > 1],
        "dots": [piece[0] for piece in pieces if len(piece) == 1],
    }


def _gaps(x: Sequence[float], series: Sequence[Series]) -> set[float]:
    """The x of values that cannot be drawn; each is marked on the axis."""
    pairs = [pair for one in series for pair in zip(x, one.values, strict=False)]
    return {at for at, value in pairs if value is not None and not is_drawable(value)}


def histogram(name: str, values: NDArray[np.float32], reach: float, tone: int) -> Markup:
    """Values between −reach and reach as a small figure with their count and mean; non-finite ones are left out."""
    width, height, base = 240, 96, 74
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, HISTOGRAM_BINS, (-reach, reach))
    most = max(1, int(counts.max(initial=0)))
    bars = []
    for count, low, high in zip(counts.tolist(), edges[:-1], edges[1:], strict=True):
        if count:
            left, right = ((edge + reach) / (2 * reach) * width for edge in (low, high))
            tall = count / most * (base - 8)
            text = f"{number_text(float(low), 3)} … {number_text(float(high), 3)}: {count}"
            shape = {"x": left + 0.7, "y": base - tall, "width": right - left - 1.4, "height": tall}
            bars.append({**{key: f"{value:.1f}" for key, value in shape.items()}, "text": text})
    mean = number_text(float(finite.mean()), 3) if len(finite) else "–"
    left_out = len(values) - len(finite)
    caption = f"{len(values)} channel{'' if len(values) == 1 else 's'} · mean {mean}"
    drawing = {
        "name": name, "caption": caption + f" · {left_out} not finite" * bool(left_out), "tone": tone, "bars": bars,
        "width": width, "height": height, "base": base,
        "labels": [("", 0, number_text(-reach, 2)), ("middle", width / 2, "0"), ("end", width, number_text(reach, 2))],
    }  # fmt: skip
    return _draw("histogram", drawing)


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> Markup:
    """Counts [true][predicted] as cells coloured by the share of the row; right and wrong have their own colour."""
    classes = len(counts)
    numbered, named = classes <= MAX_NUMBERED_CLASSES, classes <= MAX_NAMED_CLASSES
    cell = 44 if numbered else max(5, min(18, 760 // classes))
    margin = min(210, 16 + 6.6 * max(min(len(name), MAX_NAME_CHARS) for name in names)) if named else 24
    left, top = round(margin), round(0.72 * margin) + 10
    side = cell * classes
    cells = [
        {
            "row": row, "column": column, "x": left + column * cell, "y": top + row * cell, "count": count,
            "total": sum(values), "share": count / sum(values),
        }
        for row, values in enumerate(counts)
        for column, count in enumerate(values)
        if count
    ]  # fmt: skip
    drawing = {
        "names": names, "numbered": numbered, "named": named, "longest": MAX_NAME_CHARS, "cells": cells, "cell": cell,
        "gap": 1.5 if numbered else 0.5, "left": left, "top": top, "side": side,
        "width": left + side + (round(0.7 * margin) if named else 0),  # the last slanted name extends beyond the cells
        "height": top + side + 4,
    }  # fmt: skip
    return _draw("matrix", drawing)
