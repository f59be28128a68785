"""Names beside the points of a figure, placed so that they cover neither each other nor the points."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

FONT_SIZE, LINE_HEIGHT = 7, 1.3  # points; of a label, in font sizes
LINE_COLOR = "#666666"


class FigureLabel(NamedTuple):
    """The name of a point."""

    name: str
    x: float  # shares of the panel
    y: float
    bold: bool = False


Box = tuple[float, float, float, float]  # left, bottom, right, top, as shares of the panel


def place_labels(axes: Any, labels: Sequence[FigureLabel]) -> None:
    """Each name beside its point, at the nearest place that covers the fewest others; a line leads to a far one."""
    points = [(label.x - 0.012, label.y - 0.02, label.x + 0.012, label.y + 0.02) for label in labels]
    taken: list[Box] = []
    for label in sorted(labels, key=lambda one: (not one.bold, -one.y)):
        size = _size(axes, label)
        others = [box for box, own in zip(points, labels, strict=True) if own is not label]
        sides = (0.025, -0.025, 0.1, -0.1)
        boxes = [_box(label, size, side, rise) for rise in _rises(label.bold) for side in sides]
        inside = [box for box in boxes if box[0] > 0 and box[2] < 1.02 and box[1] > -0.01 and box[3] < 1.02]
        left, bottom, right, top = chosen = min(inside or boxes, key=lambda box: _covered(box, (*taken, *others)))
        taken.append(chosen)
        away = left - label.x if left > label.x else label.x - right
        far = abs((bottom + top) / 2 - label.y) > 0.04 or away > 0.05
        axes.annotate(
            label.name, (label.x, label.y), (left if left > label.x else right, (bottom + top) / 2),
            xycoords="axes fraction", textcoords="axes fraction", fontsize=FONT_SIZE, va="center",
            ha="left" if left > label.x else "right", fontweight="bold" if label.bold else "normal",
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": LINE_COLOR, "shrinkB": 3} if far else None,
        )  # fmt: skip


def _size(axes: Any, label: FigureLabel) -> tuple[float, float]:
    """Width and height of a name, as shares of the panel."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(weight="bold" if label.bold else "normal")
    panel, (width, height) = axes.get_position(), 72 * axes.figure.get_size_inches()
    letters = TextPath((0, 0), label.name, size=FONT_SIZE, prop=font).get_extents().width
    return letters / (panel.width * width), LINE_HEIGHT * FONT_SIZE / (panel.height * height)


def _rises(bold: bool) -> list[float]:
    """Places to try, nearest first; a point of the frontier has a line to its right, so its name is above that."""
    away = [sign * step * 0.03 for step in range(1, 20) for sign in (1, -1)]
    return away if bold else [0.0, *away]


def _box(label: FigureLabel, size: tuple[float, float], side: float, rise: float) -> Box:
    """Of a name to the right or left (a negative side) of its point, and higher or lower."""
    near = label.x + side
    far = near + math.copysign(size[0], side)
    y = label.y + rise
    return min(near, far), y - size[1] / 2, max(near, far), y + size[1] / 2


def _covered(box: Box, others: Sequence[Box]) -> int:
    return sum(_overlap(box, other) for other in others)


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
