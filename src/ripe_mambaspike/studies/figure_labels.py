"""Names beside the points of a figure, placed so that they cover neither each other nor the points."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

TEXT_HEIGHT, LETTER_WIDTH = 0.042, 0.0135  # of a label, as shares of a panel
LINE_COLOR = "#666666"


class FigureLabel(NamedTuple):
    """The name of a point."""

    name: str
    x: float  # shares of the panel
    y: float
    bold: bool = False


def place_labels(axes: Any, labels: Sequence[FigureLabel]) -> None:
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
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": LINE_COLOR, "shrinkB": 3} if far else None,
        )  # fmt: skip


def _rises(bold: bool) -> list[float]:
    """Places to try, nearest first; a point of the frontier has a line to its right, so its name is above that."""
    away = [sign * step * 0.03 for step in range(1, 20) for sign in (1, -1)]
    return away if bold else [0.0, *away]


def _box(label: FigureLabel, width: float, side: float, rise: float) -> tuple[float, float, float, float]:
    """Of a name to the right or left (a negative side) of its point, and higher or lower."""
    near = label.x + side
    far = near + math.copysign(width, side)
    y = label.y + rise
    return min(near, far), y - TEXT_HEIGHT / 2, max(near, far), y + TEXT_HEIGHT / 2


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
