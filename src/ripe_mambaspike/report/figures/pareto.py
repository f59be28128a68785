"""Accuracy against parameters: five panels with every row of Table 1 that has a count."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ripe_mambaspike.models.peers.published import PublishedResult, published_results
from ripe_mambaspike.report.figures.canvas import BASELINE, OURS, PAPER, THIRD, new_figure, plain_axes

TITLES = {
    "dvsgesture": "DVS-Gesture",
    "cifar10dvs": "CIFAR10-DVS",
    "ncaltech101": "N-Caltech101",
    "dailydvs200": "DailyDVS-200",
    "nmnist": "N-MNIST",
}
FLOORS = {"dvsgesture": 97.4, "cifar10dvs": 79.4, "nmnist": 99.46}  # of the axis; what is below stands at its edge
WIDENED = {
    "cifar10dvs": [("64-128-256", 3.35, 82.80), ("128-256-512", 13.14, 83.40)]
}  # the paper's text on wider stages
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
TEXT_HEIGHT, LETTER_WIDTH = 0.042, 0.0135  # of a label, as shares of a panel


class Label(NamedTuple):
    name: str
    x: float  # shares of the panel
    y: float
    bold: bool


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points for which no other is as small and more accurate, or smaller and as accurate; from small to large."""
    best: list[tuple[float, float]] = []
    for size, accuracy in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not best or accuracy > best[-1][1]:
            best.append((size, accuracy))
    return best


def draw_pareto() -> Any:
    figure = new_figure(13, 7.4)
    panels = figure.subplots(2, 3).ravel()
    for axes, (dataset, title) in zip(panels, TITLES.items(), strict=False):
        _panel(axes, dataset, [row for row in published_results(dataset) if row.millions is not None])
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel("parameters at inference, M")
        axes.set_ylabel("top-1, %")
        plain_axes(axes)
    _legend(panels[-1])
    return figure


def _legend(axes: Any) -> None:
    axes.axis("off")
    for style, label in (
        ({"marker": "*", "color": OURS, "markersize": 14}, "RIPE-MambaSpike, as the paper prints it"),
        ({"marker": "*", "color": OURS, "markersize": 12, "markerfacecolor": "white"}, "its rescaled variants"),
        ({"marker": "o", "color": PAPER}, "quoted by the paper from other papers"),
        ({"marker": "s", "color": BASELINE}, "Mamba-Spike, run by the paper"),
        ({"marker": "v", "color": BASELINE}, "below the panel, with its accuracy"),
    ):
        axes.plot([], [], linestyle="", label=label, **style)
    axes.plot([], [], color=THIRD, label="frontier of the rows with a count (names in bold)")
    axes.legend(frameon=False, loc="center left", fontsize=9)


def _panel(axes: Any, dataset: str, rows: Sequence[PublishedResult]) -> None:
    points = [(float(row.millions or math.nan), row.accuracy) for row in rows]
    more = WIDENED.get(dataset, [])
    edge = frontier(points)
    sizes = [size for size, _ in points]
    left, right = min(sizes) / 2, max(sizes) * 3
    shown = [accuracy for _, accuracy in points if accuracy >= FLOORS.get(dataset, 0)]
    gap = max(shown) - min(shown)
    low, high = FLOORS.get(dataset, min(shown) - 0.08 * gap), max(shown) + 0.1 * gap
    axes.set(xscale="log", xlim=(left, right), ylim=(low, high))
    axes.minorticks_off()
    ticks = [tick for tick in TICKS if left <= tick <= right]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    steps = ([*(x for x, _ in edge), right], [*(y for _, y in edge), edge[-1][1]])
    axes.plot(*steps, color=THIRD, drawstyle="steps-post", linewidth=1.2, zorder=1)
    labels = []

    def add(name: str, size: float, accuracy: float, bold: bool = False) -> None:
        share = (math.log(size / left) / math.log(right / left), (accuracy - low) / (high - low))
        labels.append(Label(name, *share, bold))

    for row, (size, accuracy) in zip(rows, points, strict=True):
        if accuracy < low:
            axes.plot(size, low + 0.02 * (high - low), "v", color=BASELINE, markersize=6, zorder=3)
            add(f"{row.method} {accuracy:.2f}", size, low + 0.02 * (high - low))
            continue
        axes.plot(size, accuracy, zorder=4 if row.mark == "ours" else 3, **_marker(row))
        add(row.method, size, accuracy, (size, accuracy) in edge)
    for name, size, accuracy in more:
        axes.plot(size, accuracy, "*", color=OURS, markersize=12, markerfacecolor="white", zorder=4)
        add(name, size, accuracy)
    _place_labels(axes, labels)
    if dataset == "dailydvs200":
        axes.axhline(50, linestyle=":", color=PAPER, linewidth=1)


def _marker(row: PublishedResult) -> dict[str, Any]:
    if row.mark == "ours":
        lite = "lite" in row.method
        return {"marker": "*", "color": OURS, "markersize": 12 if lite else 15,
                "markerfacecolor": "white" if lite else OURS}  # fmt: skip
    marker, color = ("o", PAPER) if row.mark == "published" else ("s", BASELINE)
    return {"marker": marker, "color": color, "markersize": 5}


def _place_labels(axes: Any, labels: Sequence[Label]) -> None:
    """Each name beside its point, at the first place that is free; a line leads to one that is farther away."""
    points = [(label.x - 0.012, label.y - 0.02, label.x + 0.012, label.y + 0.02) for label in labels]
    taken: list[tuple[float, float, float, float]] = []
    for label in sorted(labels, key=lambda one: (not one.bold, -one.y)):
        width = LETTER_WIDTH * len(label.name) * (1.1 if label.bold else 1)
        others = [box for box, own in zip(points, labels, strict=True) if own is not label]
        boxes = [_box(label, width, side, rise) for rise in _rises(label.bold) for side in (1, -1)]
        inside = [box for box in boxes if box[0] > 0 and box[2] < 1.02 and box[1] > -0.01 and box[3] < 1.02]
        free = [box for box in inside if not any(_overlap(box, other) for other in (*taken, *others))]
        left, bottom, right, top = chosen = (free or inside or boxes)[0]
        taken.append(chosen)
        far = abs((bottom + top) / 2 - label.y) > 0.04
        axes.annotate(
            label.name, (label.x, label.y), (left if left > label.x else right, (bottom + top) / 2),
            xycoords="axes fraction", textcoords="axes fraction", fontsize=7, va="center",
            ha="left" if left > label.x else "right", fontweight="bold" if label.bold else "normal",
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": PAPER, "shrinkB": 3} if far else None,
        )  # fmt: skip


def _rises(bold: bool) -> list[float]:
    """Places to try, nearest first; a point of the frontier has a line to its right, so its name is above that."""
    away = [sign * step * 0.03 for step in range(1, 12) for sign in (1, -1)]
    return away if bold else [0.0, *away]


def _box(label: Label, width: float, side: int, rise: float) -> tuple[float, float, float, float]:
    """Of a name to the right or left of its point, and higher or lower."""
    near = label.x + side * 0.025
    y = label.y + rise
    return min(near, near + side * width), y - TEXT_HEIGHT / 2, max(near, near + side * width), y + TEXT_HEIGHT / 2


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
