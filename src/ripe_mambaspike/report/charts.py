"""Line charts as inline SVG: drawn here, coloured by the page's style, readable without a script.

A chart carries its points in `data-chart`, from which the page's script shows the values under the pointer.
"""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ripe_mambaspike.report.formatting import escaped, number_text

WIDTH, HEIGHT = 380, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 16, 34
LARGEST = 1e100  # what is beyond is marked like what is not finite
Value = float | None


@dataclass(frozen=True)
class Series:
    """One line: a gap where a value is not finite; where it is None the line goes straight on."""

    name: str
    values: Sequence[Value]
    tone: int  # colour, from 1
    dashed: bool = False


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
    """Round numbers of a range, about so many."""
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


def drawable(value: float) -> bool:
    return math.isfinite(value) and abs(value) < LARGEST


def drawable_values(series: Sequence[Series]) -> list[float]:
    return [value for one in series for value in one.values if value is not None and drawable(value)]


def value_axis(
    values: Sequence[float], log: bool, low: float | None, high: float | None, ceiling: float = math.inf
) -> Axis:
    """From the values, or from given ends; `log` turns to a logarithm where they span two powers of ten.

    Room above the values ends at the ceiling.
    """
    least, most = min(values), max(values)
    if log and 1 / LARGEST < least < most / 100:
        return Axis(least / 1.15, most * 1.15, HEIGHT - BOTTOM, TOP, True)
    least = least if low is None else min(low, least)
    most = most if high is None else max(high, most)
    if most - least <= 1e-12 * max(abs(most), abs(least), 1 / LARGEST):
        around = abs(most) / 10 if abs(most) > 1 / LARGEST else 1.0
        least, most = least - around, most + around
    else:
        room = 0.06 * (most - least)
        least = least - room if low is None else least
        most = max(most, min(most + room, ceiling)) if high is None else most
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
) -> str:
    """A figure with its legend; a sentence where there is no finite value. Title and note are ours, names are escaped.

    `mark` is a place on x with a word to it.
    """
    values = drawable_values(series)
    heading = f"<figcaption><b>{html.escape(title)}</b>{f' <span>{html.escape(note)}</span>' if note else ''}"
    if not values:
        return (
            f'<figure class="card">{heading}</figcaption><p class="missing">Nothing finite was recorded.</p></figure>'
        )
    across = Axis(*_ends(x), LEFT, WIDTH - RIGHT)
    up = value_axis(values, log, low, high, 1.0 if percent else math.inf)
    parts = [_grid(across, up, x_name, percent)]
    if mark is not None and across.low <= mark[0] <= across.high:
        parts.append(_mark(across.at(mark[0]), mark[1]))
    parts += [_line(one, x, across, up) for one in series]
    parts.append(_gaps(series, x, across))
    described = f"{title}: {', '.join(one.name for one in series)}"
    svg = (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escaped(described, 200)}" '
        f'data-chart="{_data(x, series, across, x_name, percent)}">{"".join(parts)}<line class="cursor" y1="{TOP}" '
        f'y2="{HEIGHT - BOTTOM}" x1="0" x2="0"/></svg>'
    )
    return f'<figure class="card">{heading}{legend(series, percent)}</figcaption>{svg}</figure>'


def legend(series: Sequence[Series], percent: bool = False) -> str:
    """The lines' names, each with its last value."""
    entries = []
    for one in series:
        last = next((value for value in reversed(one.values) if value is not None), None)
        dash = " dashed" if one.dashed else ""
        entries.append(
            f'<span class="key"><svg viewBox="0 0 18 8" aria-hidden="true"><path class="line t{one.tone}{dash}" '
            f'd="M0 4H18"/></svg>{escaped(one.name, 40)} <em>{_value(last, percent)}</em></span>'
        )
    return f'<span class="legend">{"".join(entries)}</span>'


def _ends(x: Sequence[float]) -> tuple[float, float]:
    low, high = min(x), max(x)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _value(value: Value, percent: bool, digits: int = 4) -> str:
    if value is not None and percent and math.isfinite(value):
        return f"{number_text(100 * value, digits)} %"
    return number_text(value, digits)


def _grid(across: Axis, up: Axis, x_name: str, percent: bool) -> str:
    parts = []
    for tick in up.ticks():
        y = up.at(tick)
        text = f"{number_text(100 * tick, 3)}%" if percent else number_text(tick, 3)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{y + 3.5:.1f}">{text}</text>')
    int_or_none = [tick for tick in across.ticks(5) if across.high - across.low < 2 or tick == int(tick)]
    if across.high - across.low == 1 and across.low % 1:  # a single point
        int_or_none = [across.low + 0.5]
    for tick in int_or_none:
        where = across.at(tick)
        parts.append(f'<text class="middle" x="{where:.1f}" y="{HEIGHT - BOTTOM + 15}">{number_text(tick)}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="middle name" x="{middle}" y="{HEIGHT - 5}">{html.escape(x_name)}</text>')
    return "".join(parts)


def _mark(where: float, word: str) -> str:
    anchor = "end" if where > WIDTH * 0.9 else "middle"
    return (
        f'<path class="mark" d="M{where:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        f'<text class="{anchor}" x="{where:.1f}" y="{TOP - 5}">{html.escape(word)}</text>'
    )


def _line(one: Series, x: Sequence[float], across: Axis, up: Axis) -> str:
    """Pieces between the values that are not finite; a piece of one point is a dot."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, value in zip(x, one.values, strict=False):
        if value is None:
            continue
        if drawable(value) and not (up.log and value <= 0):
            pieces[-1].append((across.at(place), up.at(value)))
        elif pieces[-1]:
            pieces.append([])
    parts = []
    for piece in filter(None, pieces):
        if len(piece) == 1:
            parts.append(f'<circle class="dot t{one.tone}" cx="{piece[0][0]:.1f}" cy="{piece[0][1]:.1f}" r="3.2"/>')
        else:
            path = "L".join(f"{a:.1f} {b:.1f}" for a, b in piece)
            parts.append(f'<path class="line t{one.tone}{" dashed" if one.dashed else ""}" d="M{path}"/>')
    return "".join(parts)


def _gaps(series: Sequence[Series], x: Sequence[float], across: Axis) -> str:
    """A small sign on the axis where a value was not finite."""
    places = {
        place
        for one in series
        for place, value in zip(x, one.values, strict=False)
        if value is not None and not drawable(value)
    }
    base = HEIGHT - BOTTOM
    return "".join(
        f'<path class="bad" d="M{across.at(place):.1f} {base - 7}l4 7h-8z">'
        "<title>not finite, or too large to draw</title></path>"
        for place in sorted(places)
    )


def _data(x: Sequence[float], series: Sequence[Series], across: Axis, x_name: str, percent: bool) -> str:
    document = {
        "name": x_name,
        "x": [round(across.at(place), 1) for place in x],
        "at": [number_text(place) for place in x],
        "lines": [
            {"name": one.name, "tone": one.tone, "values": [_value(value, percent) for value in one.values]}
            for one in series
        ],
    }
    return html.escape(json.dumps(document, separators=(",", ":")))
