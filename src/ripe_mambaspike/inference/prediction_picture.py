"""A picture of a prediction: event frames, and the probabilities of the leading classes over time below them."""

import os
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording, check_inside
from ripe_mambaspike.events.view import figure as draw
from ripe_mambaspike.events.view.frames import equal_spans, event_frames, robust_scale
from ripe_mambaspike.events.view.picture import GridLayout, make_layout, mosaic
from ripe_mambaspike.events.view.words import caption, clean, span_text
from ripe_mambaspike.files import write_file
from ripe_mambaspike.inference.predict import Prediction

FRAMES = 12
CURVES = 4  # classes that are drawn, those with the highest probabilities at the end
COLORS = ("#0b69b3", "#c2570c", "#3b8132", "#8a4fa3")
MAX_CLASS_CHARS, MAX_LEGEND_CHARS = 40, 24


def view_prediction(
    recording: Recording, prediction: Prediction, path: str | Path, *, title: str | None = None
) -> Path:
    """Write a PNG of a recording with its predicted class and the probabilities over time; whole or not at all.

    `recording` is the one that was classified; `title` is shown above it, usually the name of the file.
    """
    path = Path(os.fspath(path))
    if path.suffix.lower() != ".png":
        raise InputError.expected("path", "a name that ends in .png", repr(path.suffix), path=path)
    if not len(recording):
        raise InputError.expected("events", "at least one", "none", path=path)
    check_inside(recording)
    return write_file(path, _render(recording.ordered(), prediction, title))


def _render(recording: Recording, prediction: Prediction, title: str | None) -> bytes:
    first, last = recording.first_us, recording.last_us
    parts = equal_spans(first, last, min(FRAMES, last - first + 1))
    layout = make_layout(len(parts), recording.sensor_size)
    frames = list(event_frames(recording, parts, layout.shrink))
    figure = draw.make_figure(*layout.size)
    figure.figimage(mosaic(frames, robust_scale(frames), layout), 0, 0, origin="upper", zorder=-1)

    def write(x: float, y: float, text: str, pixels: float, color: str, **style: Any) -> None:
        draw.write_text(figure, x * layout.unit, y * layout.unit, text, pixels * layout.unit, color, **style)

    shown = f"{clean(prediction.label, MAX_CLASS_CHARS)} {100 * prediction.probability:.1f} %"
    shown = f"unknown ({shown})" if prediction.unknown else shown
    right = layout.size[0] / layout.unit - 30
    letters = max(8, int((right - 30) / 15.5) - len(shown) - 2)  # of 23 pixels, bold
    write(30, 44, clean(title or "recording", letters), 23, draw.TEXT_COLOR, weight="bold")
    write(right, 44, shown, 23, COLORS[0], weight="bold", ha="right")
    write(30, 74, caption(recording), 15, draw.GRAY)
    for index, (start, stop) in enumerate((parts - first).tolist()):
        x, y = layout.corner(index)
        write(x / layout.unit, y / layout.unit - 7, span_text(start, stop, last - first), 13.5, draw.GRAY)
    _draw_probabilities(figure, prediction, layout)
    return draw.to_png(figure, f"{clean(title or 'recording')}: {clean(shown)}")


def _draw_probabilities(figure: Any, prediction: Prediction, layout: GridLayout) -> None:
    width, height = layout.size
    left, bottom, wide, tall = layout.plot
    axes = figure.add_axes((left / width, bottom / height, wide / width, tall / height), facecolor="none")
    points = 13 * layout.unit * 72 / draw.DPI
    steps = prediction.timeline
    start = steps[0].start_us
    edges = [0, *(step.stop_us - start for step in steps)]
    unit, name = (1e3, "ms") if edges[-1] < 2_000_000 else (1e6, "s")
    names = list(prediction.probabilities)
    order = sorted(range(len(names)), key=lambda place: -prediction.probabilities[names[place]])[:CURVES]
    for place, color in zip(order, COLORS, strict=False):
        values = [100 * row[place] for row in prediction.step_probabilities]
        axes.stairs(
            values, [edge / unit for edge in edges], baseline=None, color=color, linewidth=2 * layout.unit,
            label=clean(names[place], MAX_LEGEND_CHARS).replace("$", "\\$").lstrip("_"), zorder=3,
        )  # fmt: skip
    axes.set(xlim=(0, edges[-1] / unit), ylim=(0, 105), yticks=(0, 50, 100))
    axes.set_xlabel(f"time, {name}", fontsize=points, color=draw.GRAY)
    axes.tick_params(labelsize=points, colors=draw.GRAY, length=0, pad=4 * layout.unit)
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set(visible=True, color=draw.LINE_COLOR)
    axes.grid(axis="y", color=draw.LINE_COLOR, linewidth=0.8, zorder=1)
    axes.set_title(
        "probability of the leading classes so far, %", loc="left", fontsize=points, color=draw.GRAY,
        pad=8 * layout.unit,
    )  # fmt: skip
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=CURVES, frameon=False, fontsize=points, labelcolor=draw.GRAY,
        borderaxespad=0.1,
    )  # fmt: skip
