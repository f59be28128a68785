"""One picture of a recording: frames in a grid, and the rate of events below them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.view import figure as draw
from ripe_mambaspike.events.view.frames import (
    PALETTE,
    Counts,
    equal_spans,
    event_frames,
    rate,
    robust_scale,
    shade,
    spans,
)
from ripe_mambaspike.events.view.words import caption, clean, heading, span_text

FRAMES, MAX_FRAMES = 12, 200
GRID_PIXELS = (1900, 1200)  # approximate size of the grid in pixels
MIN_WIDTH = 1000  # pixels; room for the caption and the rate
LEGEND_WIDTH = 260  # units


@dataclass(frozen=True)
class GridLayout:
    """The layout of the frames in integer pixels, so that a sensor pixel is a square of the picture."""

    columns: int
    rows: int
    shrink: int  # pixels of the sensor a cell, each way
    scale: int  # pixels of the picture a cell, each way
    cell: tuple[int, int]  # (width, height) of a frame in the picture
    size: tuple[int, int]  # of the picture
    unit: float  # what the letters and margins are multiplied by

    @property
    def left(self) -> int:
        """The left edge of the grid, which is centred."""
        return (self.size[0] - self.columns * self.cell[0] - (self.columns - 1) * self.gap) // 2

    @property
    def gap(self) -> int:
        return round(14 * self.unit)

    @property
    def label(self) -> int:
        """The height of the time above a frame."""
        return round(30 * self.unit)

    @property
    def top(self) -> int:
        return round(92 * self.unit)

    @property
    def plot(self) -> tuple[int, int, int, int]:
        """The axes of the rate: left, bottom, width, height, from the bottom left."""
        left, bottom, right = round(84 * self.unit), round(64 * self.unit), round(30 * self.unit)
        return left, bottom, self.size[0] - left - right, round(170 * self.unit)

    def corner(self, index: int) -> tuple[int, int]:
        """The left top corner of a frame, from the left top."""
        row, column = divmod(index, self.columns)
        x = self.left + column * (self.cell[0] + self.gap)
        return x, self.top + row * (self.cell[1] + self.label) + self.label


def make_layout(frames: int, sensor_size: tuple[int, int]) -> GridLayout:
    """The grid with the largest frames, scaled by an integer factor or divisor."""
    width, height = sensor_size

    def fitting(columns: int) -> float:
        rows = -(-frames // columns)
        wide = (GRID_PIXELS[0] - 14 * (columns - 1)) / columns / width
        return min(wide, max(GRID_PIXELS[1] / rows - 30, 4) / height)

    columns = max(range(1, frames + 1), key=fitting)
    rows = -(-frames // columns)
    zoom = fitting(columns)
    shrink, scale = max(1, math.ceil(1 / zoom - 0.1)), max(1, math.floor(zoom + 0.35))
    cell = (-(-width // shrink) * scale, -(-height // shrink) * scale)
    wide = max(columns * cell[0] + (columns - 1) * 14, MIN_WIDTH)
    unit = min(max(wide / 1300, 0.8), 1.6)
    wide = max(columns * cell[0] + round(14 * unit) * (columns - 1), MIN_WIDTH) + round(60 * unit)
    tall = round(92 * unit) + rows * (cell[1] + round(30 * unit)) + round(274 * unit)
    return GridLayout(columns, rows, shrink, scale, cell, (wide, tall), unit)


def picture(recording: Recording, frames: int | None, window_us: int | None, title: str | None) -> bytes:
    """The PNG of ordered events."""
    first, last = recording.first_us, recording.last_us
    if frames is None and window_us is None:
        parts = equal_spans(first, last, min(FRAMES, last - first + 1))
    else:
        parts = spans(recording, frames, window_us, MAX_FRAMES)
    layout = make_layout(len(parts), recording.sensor_size)
    counted = list(event_frames(recording, parts, layout.shrink))
    scale = robust_scale(counted)
    figure = draw.make_figure(*layout.size)
    figure.figimage(mosaic(counted, scale, layout), 0, 0, origin="upper", zorder=-1)

    def write(x: float, y: float, text: str, pixels: float, color: str, **style: Any) -> None:
        draw.write_text(figure, x * layout.unit, y * layout.unit, text, pixels * layout.unit, color, **style)

    left, right = 30, layout.size[0] / layout.unit - 30
    letters = int((right - left - LEGEND_WIDTH) / 15.5)  # of 23 pixels, bold
    write(left, 44, clean(heading(recording, title), letters), 23, draw.TEXT_COLOR, weight="bold")
    write(left, 74, f"{caption(recording)} · {_key(scale, layout.shrink)}", 15, draw.GRAY)
    write(right, 44, "● OFF darker", 15, draw.OFF_COLOR, ha="right")
    write(right - 118, 44, "● ON brighter", 15, draw.ON_COLOR, ha="right")
    for index, (start, stop) in enumerate((parts - first).tolist()):
        x, y = layout.corner(index)
        write(x / layout.unit, y / layout.unit - 7, span_text(start, stop, last - first), 13.5, draw.GRAY)
    _draw_rate(figure, recording, parts, layout)
    return draw.to_png(figure, clean(heading(recording, title)))


def mosaic(frames: list[Counts], scale: int, layout: GridLayout) -> NDArray[np.uint8]:
    """The whole picture [H, W, 3], white but for the frames."""
    width, height = layout.size
    grid = np.full((height, width, 3), 255, np.uint8)
    for index, frame in enumerate(frames):
        x, y = layout.corner(index)
        shown = PALETTE[shade(frame, scale)].repeat(layout.scale, 0).repeat(layout.scale, 1)
        grid[y : y + layout.cell[1], x : x + layout.cell[0]] = shown
    return grid


def _key(scale: int, shrink: int) -> str:
    cell = "a pixel" if shrink == 1 else f"in {shrink}×{shrink} pixels"
    return f"full colour from {scale} event{'' if scale == 1 else 's'} {cell}"


def _draw_rate(figure: Any, recording: Recording, parts: Counts, layout: GridLayout) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    width, height = layout.size
    left, bottom, wide, tall = layout.plot
    axes = figure.add_axes((left / width, bottom / height, wide / width, tall / height), facecolor="none")
    points = 13 * layout.unit * 72 / draw.DPI
    whole = recording.duration_us
    unit, name = (1e3, "ms") if whole < 2_000_000 else (1e6, "s")
    edges, counts = rate(recording)
    axes.set_xlabel(f"time, {name}", fontsize=points, color=draw.GRAY)
    axes.tick_params(labelsize=points, colors=draw.GRAY, length=0, pad=4 * layout.unit)
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set(visible=True, color=draw.LINE_COLOR)
    if not whole:
        axes.set(xticks=[0], yticks=[], xlim=(-1, 1))
        axes.text(
            0.5, 0.5, "all events at one time", ha="center", fontsize=points, color=draw.GRAY, transform=axes.transAxes
        )
        return
    seconds = np.diff(edges) / 1e6
    when = (edges - edges[0]) / unit
    for values, color in ((-counts[0] / seconds, draw.OFF_COLOR), (counts[1] / seconds, draw.ON_COLOR)):
        axes.stairs(values, when, fill=True, color=color, alpha=0.3, linewidth=0, zorder=2)
        axes.stairs(values, when, baseline=None, color=color, linewidth=1.4 * layout.unit, zorder=3)
    for start, stop in ((parts[::2] - edges[0]) / unit).tolist():
        axes.axvspan(start, min(stop, when[-1]), color=draw.LINE_COLOR, alpha=0.4, linewidth=0, zorder=0)
    highest = 1.05 * float((counts / seconds).max())
    axes.set(xlim=(0, when[-1]), ylim=(-highest, highest))
    axes.yaxis.set_major_locator(MaxNLocator(5, symmetric=True))
    number = EngFormatter(sep="")
    axes.yaxis.set_major_formatter(lambda value, _: number(abs(value)))
    axes.grid(axis="y", color=draw.LINE_COLOR, linewidth=0.8, zorder=1)
    axes.set_title(
        "events/s, ON above and OFF below", loc="left", fontsize=points, color=draw.GRAY, pad=8 * layout.unit
    )
