"""Write a comparison of real recordings and their simulated twins: its numbers, a figure, and examples."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.simulate.compare import BINS, TARGET_SEPARABILITY, Comparison, bin_index, unmet_targets
from ripe_mambaspike.events.view.figure import (
    GRAY,
    LINE_COLOR,
    OFF_COLOR,
    ON_COLOR,
    TEXT_COLOR,
    make_figure,
    to_png,
    write_text,
)
from ripe_mambaspike.events.view.frames import GROUND, PALETTE, Counts, event_frame, robust_scale, shade
from ripe_mambaspike.files import write_together

REAL, SIMULATED = TEXT_COLOR, "#009e73"  # differ in lightness and hue; orange and blue are the polarities
SHOWN_TWINS = 6  # from the least similar pair to the most similar
SIDE = 102  # approximate longer side of an event image, in pixels
GAP, LABEL, HEAD, EDGE = 8, 26, 112, 28  # pixels
POINTS = 9.0


def write_comparison(
    comparison: Comparison,
    real: Sequence[Events],
    simulated: Sequence[Events],
    pictures: Any,
    labels: Sequence[int],
    folder: str | Path,
) -> Path:
    """`comparison.json`, `comparison.png` and `twins.png` in the folder, all three or none.

    Pictures [N, h, w] have values from 0 to 1; recordings, pictures and labels are those that were compared.
    """
    shown = np.asarray(pictures, dtype=np.float64)
    lengths = [len(comparison.image), len(real), len(simulated), len(labels), len(shown)]
    if len(set(lengths)) != 1 or shown.ndim != 3:
        got = f"{lengths[:-1]} recordings and pictures of shape {shown.shape}"
        raise InputError.expected("pictures", "(N, h, w) for N real and simulated recordings and labels", got)
    document = {"misses": unmet_targets(comparison), **comparison.document()}
    made = {
        "comparison.json": json.dumps(document, indent=1, allow_nan=False).encode() + b"\n",
        "comparison.png": figure_png(comparison, real, simulated),
        "twins.png": twins_png(comparison, real, simulated, shown, labels),
    }
    folder = Path(os.fspath(folder))
    fresh = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_together(folder, made)
    except OSError as error:
        if fresh:
            with suppress(OSError):
                folder.rmdir()
        raise InputError.expected("folder", "a folder that can be written", error, path=folder) from error
    return folder


def figure_png(comparison: Comparison, real: Sequence[Events], simulated: Sequence[Events]) -> bytes:
    """Six plots of the comparison."""
    figure = make_figure(1500, 940)
    missed = unmet_targets(comparison)
    verdict = "all targets reached" if not missed else f"{len(missed)} targets missed, see comparison.json"
    write_text(figure, EDGE, 44, "Real recordings and their simulated twins", 23, TEXT_COLOR, weight="bold")
    write_text(figure, EDGE, 74, f"{len(real)} pairs · {verdict}", 15, GRAY)
    write_text(figure, 1500 - EDGE, 44, "● simulated", 15, SIMULATED, ha="right")
    write_text(figure, 1500 - EDGE - 108, 44, "● real", 15, REAL, ha="right")
    grid = figure.add_gridspec(2, 3, left=0.055, right=0.98, top=0.85, bottom=0.065, hspace=0.36, wspace=0.24)
    plots: list[Callable[[Any], None]] = [
        lambda axes: _classes(axes, comparison),
        lambda axes: _on_shares(axes, comparison, real, simulated),
        lambda axes: _rates(axes, comparison),
        lambda axes: _intervals(axes, real, simulated),
        lambda axes: _correlations(axes, comparison),
        lambda axes: _draw_separability(axes, comparison),
    ]
    for index, plot in enumerate(plots):
        axes = figure.add_subplot(grid[divmod(index, 3)])
        axes.spines[:].set_visible(False)
        axes.spines["bottom"].set(visible=True, color=LINE_COLOR)
        axes.tick_params(labelsize=POINTS, colors=GRAY, length=0)
        axes.set_axisbelow(True)
        axes.grid(axis="y", color=LINE_COLOR, linewidth=0.8)
        plot(axes)
    return to_png(figure, "Real recordings and their simulated twins")


def _title(axes: Any, text: str, below: str) -> None:
    axes.set_title(text, loc="left", fontsize=POINTS + 1.5, color=TEXT_COLOR, pad=10, parse_math=False)
    axes.set_xlabel(below, fontsize=POINTS, color=GRAY)


def _classes(axes: Any, comparison: Comparison) -> None:
    both, position = comparison.events, np.arange(len(comparison.classes))
    axes.bar(position - 0.2, [each.events.real for each in comparison.classes], 0.36, color=REAL)
    axes.bar(position + 0.2, [each.events.simulated for each in comparison.classes], 0.36, color=SIMULATED)
    for at, each in zip(position.tolist(), comparison.classes, strict=True):
        high = max(each.events.real, each.events.simulated)
        text = f"{each.events.ratio:.2f}"
        axes.annotate(
            text, (at, high), (0, 3), textcoords="offset points", ha="center", fontsize=POINTS - 1, color=GRAY
        )
    axes.set_xticks(position, [str(each.label) for each in comparison.classes])
    title = f"Mean events: {both.real:,.0f} and {both.simulated:,.0f}, ratio {both.ratio:.3f}"
    _title(axes, title, "class; above it simulated over real")


def _on_shares(axes: Any, comparison: Comparison, real: Sequence[Events], simulated: Sequence[Events]) -> None:
    shares = [[float(each["p"].mean()) for each in some if len(each)] for some in (real, simulated)]
    both = comparison.on_share
    _histograms(axes, shares)
    _title(
        axes, f"ON share: {both.real:.3f} and {both.simulated:.3f} of all", "ON share of a recording, how many have it"
    )


def _rates(axes: Any, comparison: Comparison) -> None:
    edges = np.linspace(0, comparison.duration_us / 1e3, len(comparison.rate_real) + 1)
    rates = [np.array(each) / 1e3 for each in (comparison.rate_real, comparison.rate_simulated)]
    axes.stairs(rates[0], edges, fill=True, color=REAL, alpha=0.15)
    axes.stairs(rates[0], edges, baseline=None, color=REAL, linewidth=1.5)
    axes.stairs(rates[1], edges, baseline=None, color=SIMULATED, linewidth=1.5)
    axes.set(xlim=(0, edges[-1]), ylim=(0, None))
    _title(axes, "Rate over time, thousand events/s", "time, ms")


def _intervals(axes: Any, real: Sequence[Events], simulated: Sequence[Events]) -> None:
    """Cumulative distributions of the intervals."""
    for some, color in ((real, REAL), (simulated, SIMULATED)):
        parts = [np.diff(np.sort(each["t"])) for each in some]
        values, counts = np.unique(np.concatenate(parts), return_counts=True)
        if len(values):
            axes.step(values, counts.cumsum() / counts.sum(), where="post", color=color, linewidth=1.5)
    axes.set_xscale("symlog", linthresh=1)
    axes.set(xlim=(0, None), ylim=(0, 1.02), yticks=[0, 0.1, 0.25, 0.5, 0.75, 0.9, 1])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _title(axes, "Share of intervals not longer than …", "µs between one event and the next")


def _correlations(axes: Any, comparison: Comparison) -> None:
    """Both in the simulated colour: the event image filled, the sequence as a line."""
    image, sequence = comparison.image, comparison.sequence
    low = min(*image, *sequence)
    edges = np.linspace(np.floor(low * 20) / 20, 1, 41) if low < 1 else np.linspace(0.95, 1, 41)
    axes.hist(np.clip(image, None, 1), edges, color=SIMULATED, alpha=0.75)
    axes.hist(np.clip(sequence, None, 1), edges, histtype="step", color=TEXT_COLOR, linewidth=1.4)
    for values, text, at in ((image, "■ event image", 0.95), (sequence, "□ ten-bin sequence", 0.88)):
        line = f"{text}: mean {np.mean(values):.3f}, worst {min(values):.3f}"
        color = SIMULATED if values is image else TEXT_COLOR
        axes.text(0.02, at, line, transform=axes.transAxes, fontsize=POINTS, color=color)
    axes.set_ylim(0, 1.3 * max(axes.get_ylim()[1], 1))
    _title(axes, "Recordings by their correlation with the twin", "correlation under a 3×3 box")


def _draw_separability(axes: Any, comparison: Comparison) -> None:
    apart = [each.apart for each in comparison.features]
    position = np.arange(len(apart))[::-1]
    axes.barh(position, apart, 0.7, color=SIMULATED)
    axes.set_yticks(position, [each.name for each in comparison.features])
    axes.tick_params(axis="y", labelsize=POINTS - 1)
    axes.grid(visible=False)
    axes.grid(axis="x", color=LINE_COLOR, linewidth=0.8)
    axes.axvline(0, color=GRAY, linewidth=0.8)
    most = max(1.0, 1.1 * max(abs(each) for each in apart))
    axes.set(xlim=(-most, most))
    aim = f"target: below {TARGET_SEPARABILITY:.0%}"
    title = f"Separability by these features: {comparison.separability:.1%} ({aim})"
    _title(axes, title, "mean difference, simulated − real, in standard deviations")


def _histograms(axes: Any, both: Sequence[Sequence[float]]) -> None:
    every = np.concatenate([np.asarray(each, np.float64) for each in both])
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    edges = np.linspace(low, high, 31) if high > low else np.linspace(low - 0.05, low + 0.05, 31)
    axes.hist(both[0], edges, color=REAL, alpha=0.8)
    axes.hist(both[1], edges, color=SIMULATED, alpha=0.6)
    axes.hist(both[1], edges, histtype="step", color=SIMULATED, linewidth=1.4)


def choose_pairs(alike: Sequence[float], count: int = SHOWN_TWINS) -> list[int]:
    """Indices of the pairs to show: evenly spaced from the least similar to the most similar, ends included."""
    order = np.argsort(alike, kind="stable")
    return order[np.unique(np.linspace(0, len(order) - 1, count).round().astype(int))].tolist()


def twins_png(
    comparison: Comparison,
    real: Sequence[Events],
    simulated: Sequence[Events],
    pictures: NDArray[np.float64],
    labels: Sequence[int],
) -> bytes:
    """One block per pair: the picture, then the event image and the ten bins, real above simulated."""
    width, height = comparison.size
    shrink = -(-max(width, height) // (2 * SIDE))
    zoom = max(1, SIDE // (max(width, height) // shrink))
    wide, high = -(-width // shrink) * zoom, -(-height // shrink) * zoom
    picks = choose_pairs(comparison.image)
    block = LABEL + 2 * high + GAP + 14
    left = EDGE + 2 * high + GAP + 2 * GAP  # of the event images
    bins = left + wide + 2 * GAP
    size = max(bins + BINS * (wide + GAP) - GAP + EDGE, 1000), HEAD + len(picks) * block + EDGE - 14
    canvas = np.full((size[1], size[0], 3), 255, np.uint8)
    figure = make_figure(*size)
    write_text(figure, EDGE, 44, "Twins: real above, simulated below", 23, TEXT_COLOR, weight="bold")
    about = "from the least alike event image to the most · all events, then ten parts of the time"
    write_text(figure, EDGE, 74, f"{len(picks)} of {len(real)} pairs, {about}", 15, GRAY)
    write_text(figure, size[0] - EDGE, 44, "● OFF darker", 15, OFF_COLOR, ha="right")
    write_text(figure, size[0] - EDGE - 118, 44, "● ON brighter", 15, ON_COLOR, ha="right")
    for row, index in enumerate(picks):
        top = HEAD + row * block + LABEL
        pair = [frames(each[index], comparison, shrink) for each in (real, simulated)]
        scales = robust_scale([both[0] for both in pair]), robust_scale([part for both in pair for part in both[1:]])
        _paste(canvas, EDGE, top, _gray(pictures[index], 2 * high + GAP))
        for line, shown in enumerate(pair):
            y = top + line * (high + GAP)
            for number, frame in enumerate(shown):
                x = left if number == 0 else bins + (number - 1) * (wide + GAP)
                colors = PALETTE[shade(frame, scales[number > 0])]
                _paste(canvas, x, y, colors.repeat(zoom, 0).repeat(zoom, 1))
        counts = f"{len(real[index]):,} and {len(simulated[index]):,} events"
        alike = f"correlation of the image {comparison.image[index]:.3f}, of the bins {comparison.sequence[index]:.3f}"
        write_text(figure, EDGE, top - 8, f"class {labels[index]} · {counts} · {alike}", 13.5, GRAY)
    figure.figimage(canvas, 0, 0, origin="upper", zorder=-1)
    return to_png(figure, "Real recordings above their simulated twins")


def frames(events: Events, comparison: Comparison, shrink: int) -> list[Counts]:
    """The event image and the ten bins [11 of 2, H, W]."""
    when = bin_index(events, BINS, comparison.duration_us)
    parts = [event_frame(events[when == index], comparison.size, shrink) for index in range(BINS)]
    return [np.sum(parts, axis=0), *parts]


def _gray(picture: NDArray[np.float64], side: int) -> NDArray[np.uint8]:
    """The picture [side, side, 3], enlarged by an integer factor if it is small, on a frame's background."""
    step, zoom = -(-max(picture.shape) // side), max(1, side // max(picture.shape))
    level = (np.clip(picture[::step, ::step], 0, 1) * 255).round().astype(np.uint8).repeat(zoom, 0).repeat(zoom, 1)
    made = np.full((side, side, 3), GROUND, np.uint8)
    _paste(made, (side - level.shape[1]) // 2, (side - level.shape[0]) // 2, level[..., None].repeat(3, 2))
    return made


def _paste(canvas: NDArray[np.uint8], x: int, y: int, picture: NDArray[np.uint8]) -> None:
    canvas[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
