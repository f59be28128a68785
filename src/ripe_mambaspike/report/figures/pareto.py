"""Accuracy against parameters: five panels with every row of Table 1 that has a count, and what was trained here."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ripe_mambaspike.models.peers.published import published_results
from ripe_mambaspike.report.figures.canvas import BASELINE, OURS, PAPER, THIRD, new_figure, plain_axes
from ripe_mambaspike.studies.tables.outcomes import StudyOutcome, read_outcome

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
WIDER_NAMES = {name for wider in WIDENED.values() for name, *_ in wider}
COLUMNS = 3  # panels beside each other
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


def draw_pareto(results: Path | None = None) -> Any:
    """Five panels of the paper's rows, and one for each set of the stored study of peers, where there is one."""
    outcome = read_outcome(results, "peers")
    panels = {title: (_printed_points(dataset), FLOORS.get(dataset)) for dataset, title in TITLES.items()}
    sets = outcome.sets if outcome else []
    trained = {f"{name}, trained here": (_trained_points(outcome, name), None) for name in sets if outcome}
    panels |= {title: (points, floor) for title, (points, floor) in trained.items() if points}
    rows = -(-(len(panels) + 1) // COLUMNS)
    figure = new_figure(13, 3.7 * rows)
    places = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes, (title, (points, floor)) in zip(places, panels.items(), strict=False):
        _panel(axes, points, floor)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel("parameters at inference, M")
        axes.set_ylabel("top-1, %")
        plain_axes(axes)
        if title == TITLES["dailydvs200"]:
            axes.axhline(50, linestyle=":", color=PAPER, linewidth=1)
    for axes in places[len(panels) :]:
        axes.axis("off")
    _legend(places[len(panels)], trained=len(panels) > len(TITLES))
    return figure


class ParetoPoint(NamedTuple):
    name: str
    millions: float
    accuracy: float
    kind: str  # of MARKERS
    low: float | None = None  # the 95 % interval, of what was trained here
    high: float | None = None


MARKERS: dict[str, dict[str, Any]] = {
    "ours": {"marker": "*", "color": OURS, "markersize": 15},
    "variant": {"marker": "*", "color": OURS, "markersize": 12, "markerfacecolor": "white"},
    "other": {"marker": "o", "color": PAPER, "markersize": 5},
    "baseline": {"marker": "s", "color": BASELINE, "markersize": 5},
}


def _printed_points(dataset: str) -> list[ParetoPoint]:
    """The rows of Table 1 that have a count, and the wider stages of the text."""
    points = []
    for row in published_results(dataset):
        kind = {"published": "other", "ours": "variant" if "lite" in row.method else "ours"}.get(row.mark, "baseline")
        if row.millions is not None:
            points.append(ParetoPoint(row.method, row.millions, row.accuracy, kind))
    return points + [ParetoPoint(*wider, "variant") for wider in WIDENED.get(dataset, [])]


def _trained_points(outcome: StudyOutcome, name: str) -> list[ParetoPoint]:
    """Every network that was trained on a set."""
    points = []
    for arm in outcome.arms(name):
        kind = "ours" if arm.name == "ours" else "baseline" if arm.name.startswith("mamba-spike") else "other"
        if arm.parameters and arm.mean is not None:
            points.append(ParetoPoint(arm.title, arm.parameters / 1e6, arm.mean, kind, arm.low, arm.high))
    return points


def _legend(axes: Any, trained: bool) -> None:
    quoted = "quoted by the paper from other papers" + (",\nor trained here, with its 95 % interval" if trained else "")
    for style, label in (
        (MARKERS["ours"], "RIPE-MambaSpike"),
        (MARKERS["variant"], "its rescaled variants"),
        (MARKERS["other"], quoted),
        (MARKERS["baseline"], "Mamba-Spike, run by the paper" + (" or here" if trained else "")),
        ({"marker": "v", "color": BASELINE}, "below the panel, with its accuracy"),
    ):
        axes.plot([], [], linestyle="", label=label, **style)
    axes.plot([], [], color=THIRD, label="frontier (names in bold)")
    axes.legend(frameon=False, loc="center left", fontsize=9).set_in_layout(False)  # it may be wider than a panel


def _panel(axes: Any, points: Sequence[ParetoPoint], floor: float | None) -> None:
    printed = [(point.millions, point.accuracy) for point in points if point.name not in WIDER_NAMES]
    edge = frontier(printed)
    sizes = [point.millions for point in points]
    left, right = min(sizes) / 2, max(sizes) * 3
    shown = [point.accuracy for point in points if floor is None or point.accuracy >= floor]
    gap = (max(shown) - min(shown)) or 1.0
    low, high = min(shown) - 0.08 * gap if floor is None else floor, max(shown) + 0.1 * gap
    axes.set(xscale="log", xlim=(left, right), ylim=(low, high))
    axes.minorticks_off()
    ticks = [tick for tick in TICKS if left <= tick <= right]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    steps = ([*(x for x, _ in edge), right], [*(y for _, y in edge), edge[-1][1]])
    axes.plot(*steps, color=THIRD, drawstyle="steps-post", linewidth=1.2, zorder=1)
    labels = []
    for point in points:
        name, size, accuracy = point[:3]
        if accuracy < low:
            name, accuracy = f"{name} {accuracy:.2f}", low + 0.02 * (high - low)
            axes.plot(size, accuracy, "v", color=BASELINE, markersize=6, zorder=3)
        else:
            axes.plot(size, accuracy, zorder=4, **MARKERS[point.kind])
            if point.low is not None and point.high is not None:
                axes.plot(
                    [size] * 2, [point.low, point.high], color=MARKERS[point.kind]["color"], linewidth=0.7, alpha=0.4
                )
        share = (math.log(size / left) / math.log(right / left), (accuracy - low) / (high - low))
        labels.append(Label(name, *share, (size, point.accuracy) in edge and point.name not in WIDER_NAMES))
    _place_labels(axes, labels)


def _place_labels(axes: Any, labels: Sequence[Label]) -> None:
    """Each name beside its point, at the first place that is free; a line leads to one that is farther away."""
    points = [(label.x - 0.012, label.y - 0.02, label.x + 0.012, label.y + 0.02) for label in labels]
    taken: list[tuple[float, float, float, float]] = []
    for label in sorted(labels, key=lambda one: (not one.bold, -one.y)):
        width = LETTER_WIDTH * len(label.name) * (1.1 if label.bold else 1)
        others = [box for box, own in zip(points, labels, strict=True) if own is not label]
        sides = (0.025, -0.025, 0.1, -0.1)
        boxes = [_box(label, width, side, rise) for rise in _rises(label.bold) for side in sides]
        inside = [box for box in boxes if box[0] > 0 and box[2] < 1.02 and box[1] > -0.01 and box[3] < 1.02]
        free = [box for box in inside if not any(_overlap(box, other) for other in (*taken, *others))]
        left, bottom, right, top = chosen = (free or inside or boxes)[0]
        taken.append(chosen)
        away = left - label.x if left > label.x else label.x - right
        far = abs((bottom + top) / 2 - label.y) > 0.04 or away > 0.05
        axes.annotate(
            label.name, (label.x, label.y), (left if left > label.x else right, (bottom + top) / 2),
            xycoords="axes fraction", textcoords="axes fraction", fontsize=7, va="center",
            ha="left" if left > label.x else "right", fontweight="bold" if label.bold else "normal",
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": PAPER, "shrinkB": 3} if far else None,
        )  # fmt: skip


def _rises(bold: bool) -> list[float]:
    """Places to try, nearest first; a point of the frontier has a line to its right, so its name is above that."""
    away = [sign * step * 0.03 for step in range(1, 20) for sign in (1, -1)]
    return away if bold else [0.0, *away]


def _box(label: Label, width: float, side: float, rise: float) -> tuple[float, float, float, float]:
    """Of a name to the right or left (a negative side) of its point, and higher or lower."""
    near = label.x + side
    far = near + math.copysign(width, side)
    y = label.y + rise
    return min(near, far), y - TEXT_HEIGHT / 2, max(near, far), y + TEXT_HEIGHT / 2


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
