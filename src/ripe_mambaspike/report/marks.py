"""The other drawings: histograms, bars and the confusion matrix."""

import html
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.report.formatting import escaped, number_text, percent_text

NUMBERED = 11  # classes up to which the matrix has numbers
NAMED = 40  # classes up to which it has names
LONGEST = 30  # letters of a name beside it
BINS = 17


def histogram(name: str, values: NDArray[np.float32], reach: float, tone: int) -> str:
    """Values between −reach and reach as a small figure with their number and mean; what is not finite is left out."""
    shown = values[np.isfinite(values)]
    counts, edges = np.histogram(shown, BINS, (-reach, reach))
    width, height, base, most = 240, 96, 74, max(1, int(counts.max(initial=0)))
    bars = []
    for count, low, high in zip(counts.tolist(), edges[:-1], edges[1:], strict=True):
        left, right = ((edge + reach) / (2 * reach) * width for edge in (low, high))
        tall = count / most * (base - 8)
        words = f"{number_text(float(low), 3)} … {number_text(float(high), 3)}: {count}"
        if count:
            bars.append(
                f'<rect class="fill t{tone}" x="{left + 0.7:.1f}" y="{base - tall:.1f}" '
                f'width="{right - left - 1.4:.1f}" height="{tall:.1f}"><title>{words}</title></rect>'
            )
    labels = "".join(
        f'<text class="{anchor}" x="{where}" y="{base + 15}">{number_text(value, 2)}</text>'
        for anchor, where, value in (("", 0, -reach), ("middle", width / 2, 0.0), ("end", width, reach))
    )
    mean = number_text(float(shown.mean()), 3) if len(shown) else "–"
    left_out = len(values) - len(shown)
    note = f" · {left_out} not finite" if left_out else ""
    return (
        f'<figure class="card small"><figcaption><b>{html.escape(name)}</b> <span>{len(values)} '
        f"channel{'' if len(values) == 1 else 's'} · mean {mean}{note}</span></figcaption>"
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="λ of {html.escape(name)}">'
        f'<path class="mark" d="M{width / 2} 4V{base}"/>{"".join(bars)}<path class="axis" d="M0 {base}H{width}"/>'
        f"{labels}</svg></figure>"
    )


def bar(share: float, kind: str = "t1") -> str:
    """A bar from 0 to 1, as wide as it is given room."""
    width = 100 * min(1.0, max(0.0, share))
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="rail" width="100" height="8"/><rect class="fill {kind}" width="{width:.2f}" height="8"/></svg>'
    )


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Counts [true][predicted] as coloured cells, by the share of the row; hits and misses in their own colour."""
    classes = len(counts)
    numbered, named = classes <= NUMBERED, classes <= NAMED
    cell = 44 if numbered else max(5, min(18, 760 // classes))
    room = min(210, 16 + 6.6 * max(min(len(name), LONGEST) for name in names)) if named else 24
    left, top = round(room), round(0.72 * room) + 10
    lean = round(0.7 * room) if named else 0  # what the last slanted name needs beyond the cells
    side = cell * classes
    parts = [f'<rect class="rail" x="{left}" y="{top}" width="{side}" height="{side}"/>']
    for row, values in enumerate(counts):
        total = sum(values)
        for column, count in enumerate(values):
            if count:
                parts.append(_cell(count, total, row, column, names, cell, left, top, numbered))
    if named:
        for index, name in enumerate(names):
            middle = (index + 0.5) * cell
            short, full = escaped(name, LONGEST), escaped(name)
            parts.append(
                f'<text class="end" x="{left - 6}" y="{top + middle + 4:.1f}">{short}<title>{full}</title></text>'
            )
            where = f"{left + middle:.1f} {top - 6}"
            parts.append(f'<text transform="translate({where}) rotate(-45)">{short}<title>{full}</title></text>')
    size = "numbers" if numbered else ""
    return (
        f'<div class="scroll"><svg class="matrix {size}" viewBox="0 0 {left + side + lean} {top + side + 4}" '
        f'width="{left + side + lean}" height="{top + side + 4}" role="img" aria-label="Confusion matrix of {classes} '
        f'classes: true classes down, predicted ones across">{"".join(parts)}</svg></div>'
    )


def _cell(
    count: int, total: int, row: int, column: int, names: Sequence[str], cell: int, left: int, top: int, numbered: bool
) -> str:
    share = count / total
    x, y = left + column * cell, top + row * cell
    true, predicted = escaped(names[row], 60), escaped(names[column], 60)
    words = f"{true} → {predicted}: {count:,} of {total:,} ({percent_text(share)})"
    gap = 1.5 if numbered else 0.5
    size = f'width="{cell - 2 * gap}" height="{cell - 2 * gap}"'
    hit = "hit" if row == column else "miss"
    drawn = f'<rect class="{hit}" x="{x + gap}" y="{y + gap}" {size} fill-opacity="{0.08 + 0.92 * share:.3f}"/>'
    if numbered:
        strong = " strong" if share > 0.5 else ""
        drawn += f'<text class="middle{strong}" x="{x + cell / 2}" y="{y + cell / 2 + 4.5}">{count:,}</text>'
    return f"<g>{drawn}<title>{words}</title></g>"
