"""Common to all figures: colours, an empty figure, and saving it."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.files import write_file

OURS, BASELINE, PAPER, THIRD = "#1b6ca8", "#c1440e", "#666666", "#1a8566"
STAGES = (OURS, "#c2570c", THIRD)  # the three spiking stages
ENDINGS = (".png", ".svg", ".pdf")
SETTINGS: Any = {"svg.hashsalt": "ripe", "svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 9}


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure without a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain_axes(*axes: Any, grid: bool = True) -> None:
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        if grid:
            one.grid(alpha=0.25, linewidth=0.6)
            one.set_axisbelow(True)


def plain_log_ticks(axis: Any) -> None:
    """Numbers 1, 2 and 5 of every power of ten: a logarithmic axis over one decade would have one number, or none."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def image_bytes(figure: Any, kind: str) -> bytes:
    """The figure as png, svg or pdf, the same bytes every time."""
    import matplotlib

    stamp: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    file = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(file, format=kind, dpi=150, metadata=stamp)
    return file.getvalue()


def check_ending(path: Path, endings: Sequence[str] = ENDINGS) -> str:
    """The kind of image that a file's name asks for."""
    if path.suffix.lower() not in endings:
        raise InputError(f"out: expected a name that ends in {', '.join(endings)}, got {path}", field="out")
    if not path.parent.is_dir():
        raise InputError(f"out: expected a file in an existing folder, got {path}", field="out")
    return path.suffix[1:].lower()


def save_figure(figure: Any, path: Path) -> Path:
    return write_file(path, image_bytes(figure, check_ending(path)), field="out")
