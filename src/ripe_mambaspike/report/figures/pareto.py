"""Accuracy against parameters: five panels with every row of Table 1 that has a count, and what was trained here."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ripe_mambaspike.models.peers.published import published_results
from ripe_mambaspike.report.figures.canvas import BASELINE, OURS, PAPER, THIRD, new_figure, plain_axes
from ripe_mambaspike.studies.figure_labels import FigureLabel, place_labels
from ripe_mambaspike.studies.tables.outcomes import StudyOutcome, read_outcome
from ripe_mambaspike.studies.tables.stored import ResultFolders

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


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points for which no other is as small and more accurate, or smaller and as accurate; from small to large."""
    best: list[tuple[float, float]] = []
    for size, accuracy in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not best or accuracy > best[-1][1]:
            best.append((size, accuracy))
    return best


def draw_pareto(results: ResultFolders = ()) -> Any:
    """Five panels of the paper's rows, and one for each set of the stored study of peers, where there is one."""
    outcome = read_outcome(results, "peers")
    panels = {title: (_printed_points(dataset), FLOORS.get(dataset)) for dataset, title in TITLES.items()}
    sets = outcome.sets if outcome else []
    trained = {f"{name}, trained here": (_trained_points(outcome, name), None) for name in sets if outcome}
    panels |= {title: (points, floor) for title, (points, floor) in trained.items() if points}
    rows = -(-(len(panels) + 1) // COLUMNS)
    figure = new_figure(13, 3.7 * rows)
    places = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    names = []
    for axes, (title, (points, floor)) in zip(places, panels.items(), strict=False):
        names.append((axes, _panel(axes, points, floor)))
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel("parameters at inference, M")
        axes.set_ylabel("top-1, %")
        plain_axes(axes)
        if title == TITLES["dailydvs200"]:
            axes.axhline(50, linestyle=":", color=PAPER, linewidth=1)
    for axes in places[len(panels) :]:
        axes.axis("off")
    _legend(places[len(panels)], trained=len(panels) > len(TITLES))
    figure.draw_without_rendering()  # lays the panels out: how wide a name is depends on their size
    for axes, labels in names:
        place_labels(axes, labels)
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


def _panel(axes: Any, points: Sequence[ParetoPoint], floor: float | None) -> list[FigureLabel]:
    """Draw the points and the frontier; returns the names to place."""
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

    def share(size: float, accuracy: float) -> tuple[float, float]:
        return math.log(size / left) / math.log(right / left), (accuracy - low) / (high - low)

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
        bold = (size, point.accuracy) in edge and point.name not in WIDER_NAMES
        labels.append(FigureLabel(name, *share(size, accuracy), bold))
    return labels
