"""A figure in pixels: text at pixel coordinates, and the PNG."""

from io import BytesIO
from typing import Any

DPI = 100
ON_COLOR, OFF_COLOR = "#c2570c", "#0b69b3"  # readable on white
TEXT_COLOR, GRAY, LINE_COLOR = "#16191f", "#6a7180", "#e3e6eb"


def make_figure(width: int, height: int) -> Any:
    """A white figure that touches no global state of matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def write_text(figure: Any, x: float, y: float, text: str, pixels: float, color: str, **style: Any) -> None:
    """Draw text at pixel coordinates from the top left, with matplotlib's mathtext disabled."""
    width, height = figure.get_size_inches() * DPI
    where = x / width, 1 - y / height
    figure.text(*where, text, fontsize=pixels * 72 / DPI, color=color, parse_math=False, **style)


def to_png(figure: Any, title: str) -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None, "Title": title})
    return file.getvalue()
