"""A plot of a sweep: parameters and operations against the setting, ours and the paper's."""

import io
from pathlib import Path
from typing import Any

from ripe_mambaspike.account.sweeps import Sweep, SweepRow
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.files import write_file

OURS, BASELINE, PAPER = "#1b6ca8", "#c1440e", "#666666"
ENDINGS = (".png", ".svg", ".pdf")


def plot_sweep(sweep: Sweep, path: Path) -> None:
    """Write the plot; the file's suffix selects the format."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"plot: expected a name that ends in {', '.join(ENDINGS)}, got {path}", field="plot")
    if not path.parent.is_dir():
        raise InputError(f"plot: expected a file in an existing folder, got {path}", field="plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _line(left, sweep.rows, "deployed", "RIPE-MambaSpike, deployed", OURS)
    if "mamba_spike" in sweep.units:
        _line(left, sweep.rows, "mamba_spike", "Mamba-Spike", BASELINE)
        left.set_yscale("log")
        left.set_ylim(0.3, 400)
    else:
        left.set_ylim(0, 1.3 * max(row.ours["deployed"] for row in sweep.rows))
    left.set_ylabel("parameters, M")
    _line(right, sweep.rows, "gflops_with_scan", "all operations", OURS)
    _line(right, sweep.rows, "gflops", "without the scan", OURS, style="--")
    right.set_ylabel("GFLOP a sample")
    right.set_ylim(0, 1.15 * max(row.ours["gflops_with_scan"] for row in sweep.rows))
    for axes in (left, right):
        if sweep.name != "time_steps":
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks([row.position for row in sweep.rows], [row.setting for row in sweep.rows], fontsize=8)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if any(value is not None for row in sweep.rows for value in row.paper.values()):
            axes.plot([], [], "x", color=PAPER, label="as the paper prints it")
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.suptitle(sweep.title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    image = io.BytesIO()
    figure.savefig(image, dpi=150, format=path.suffix[1:].lower())
    write_file(path, image.getvalue(), field="plot")


def _line(axes: Any, rows: list[SweepRow], column: str, label: str, color: str, style: str = "-") -> None:
    """Our values as a line with their numbers, the paper's as crosses."""
    where = [row.position for row in rows]
    values = [row.ours[column] for row in rows]
    axes.plot(where, values, style, color=color, marker="o", markersize=4, label=label)
    if style == "-":
        for position, value in zip(where, values, strict=True):
            axes.annotate(
                f"{value:.3g}", (position, value), (0, 6), textcoords="offset points", ha="center", fontsize=7.5
            )
    printed = [(row.position, row.paper[column]) for row in rows if row.paper.get(column) is not None]
    if printed:
        axes.plot(*zip(*printed, strict=True), "x", color=PAPER, markersize=7)
