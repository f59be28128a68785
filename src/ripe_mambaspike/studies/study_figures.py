"""The figures of a study, each as SVG and PDF: accuracies, effects beside the paper's, curves, conditions, costs."""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import write_file
from ripe_mambaspike.studies.conditions import LABELS, parse_condition
from ripe_mambaspike.studies.figure_labels import FigureLabel, place_labels
from ripe_mambaspike.studies.results import ArmResult, SetResult, StudyResults

Drawing = Callable[[StudyResults, Sequence[SetResult]], dict[str, bytes]]
FORMATS = ("svg", "pdf")
OURS, OTHERS, PAPER, PAPER_ELSEWHERE = "tab:red", "tab:blue", "black", "silver"
LOG_SPAN, FULL_SPAN = 3.0, 200.0  # largest over smallest cost: below, the axis is linear; above, only powers of ten
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "ripe",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def draw_study(results: StudyResults) -> dict[str, dict[str, bytes]]:
    """The figures that the results have numbers for: {name: {"svg": …, "pdf": …}}."""
    drawn = {}
    for name, draw in FIGURES.items():
        sets = [one for one in results.sets if any(True for _ in _points(results, one, name))]
        if sets:
            drawn[name] = draw(results, sets)
    return drawn


def write_figures(folder: Path, figures: dict[str, dict[str, bytes]]) -> list[Path]:
    """Write them; those of an earlier call that have nothing to show now are removed."""
    for name in FIGURES.keys() - figures.keys():
        for ending in FORMATS:
            (folder / f"{name}.{ending}").unlink(missing_ok=True)
    return [
        write_file(folder / f"{name}.{ending}", data, DataError)
        for name, images in figures.items()
        for ending, data in images.items()
    ]


def _points(results: StudyResults, one: SetResult, figure: str) -> Iterator[ArmResult]:
    """The arms of a set that a figure has something to show of."""
    for arm in one.arms:
        shown = {
            "accuracy": arm.top1 is not None,
            "effects": bool(arm.effect and arm.paper and arm.paper.delta is not None),
            "curve": results.axis is not None and arm.top1 is not None,
            "conditions": bool(arm.conditions),
            "parameters": arm.top1 is not None and "deployed" in arm.parameters,
            "latency": arm.top1 is not None and bool(arm.latency_ms),
            "rates": arm.top1 is not None and arm.rate is not None,
            "energy": arm.top1 is not None and arm.cost is not None,
        }[figure]
        if shown:
            yield arm


def _images(rows: int, columns: int, size: tuple[float, float], draw: Callable[[Any], None]) -> dict[str, bytes]:
    """A figure of panels in both formats; the same numbers give the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False)
        try:
            draw(axes)
            figure.tight_layout()
            made = {}
            for ending in FORMATS:
                file = io.BytesIO()
                nothing = {"Date": None} if ending == "svg" else {"CreationDate": None, "ModDate": None}
                figure.savefig(file, format=ending, metadata=nothing)
                made[ending] = file.getvalue()
        finally:
            plt.close(figure)
    return made


def _arms_below_each_other(figure: str, head: float, draw_arms: Callable[[Any, list[ArmResult], str], None]) -> Drawing:
    """One panel a set, with a line for each arm, the first on top; `head` is the height of what is not a line."""

    def draw_figure(results: StudyResults, sets: Sequence[SetResult]) -> dict[str, bytes]:
        def draw(axes: Any) -> None:
            for axis, one in zip(axes[0], sets, strict=True):
                arms = list(_points(results, one, figure))[::-1]
                draw_arms(axis, arms, results.reference)
                axis.set_ylim(-0.6, len(arms) - 0.4)
                axis.set_title(one.set, pad=22 if axis.get_legend() else None)

        most = max(len(one.arms) for one in sets)
        return _images(1, len(sets), (5.4, head + 0.32 * most), draw)

    return draw_figure


def _draw_accuracies(axis: Any, arms: list[ArmResult], reference: str) -> None:
    """Mean, 95 % interval and every seed of each arm."""
    for y, arm in enumerate(arms):
        assert arm.top1 is not None
        color = OURS if arm.arm == reference else OTHERS
        axis.plot(arm.top1.values, [y] * arm.top1.n, ".", color=color, alpha=0.4)
        axis.errorbar(arm.top1.mean, y, xerr=_interval_bars(arm), fmt="o", color=color, capsize=3)
    axis.set_yticks(range(len(arms)), [f"{arm.title} ({arm.top1.n})" for arm in arms if arm.top1])
    low, high = axis.get_xlim()
    axis.set_xlim(max(low, -2), min(high, 102))  # the interval of two seeds may be wider than all accuracies
    axis.set_xlabel("top-1, % (n seeds, 95 % interval)")


def _draw_effects(axis: Any, arms: list[ArmResult], reference: str) -> None:
    """The difference of each arm from the reference beside the one that the paper prints."""
    for y, arm in enumerate(arms):
        effect, paper = arm.effect, arm.paper
        assert effect is not None
        assert paper is not None
        bars = None if effect.low is None or effect.high is None else [
            [effect.delta - effect.low], [effect.high - effect.delta]
        ]  # fmt: skip
        axis.errorbar(effect.delta, y, xerr=bars, fmt="o", color=OTHERS, capsize=3, label="here")
        label, color = ("paper", PAPER) if paper.counterpart else ("paper, on another dataset", PAPER_ELSEWHERE)
        axis.plot(paper.delta, y, "x", color=color, label=label, zorder=3)
    axis.axvline(0, color="gray", linewidth=0.8)
    axis.set_yticks(range(len(arms)), [arm.title for arm in arms])
    axis.set_xlabel("difference from the reference, pp (95 %)")
    handles, labels = _named(axis)
    order = sorted(range(len(labels)), key=labels.__getitem__)
    axis.legend(
        [handles[at] for at in order], [labels[at] for at in order], loc="lower center", bbox_to_anchor=(0.5, 1.0),
        ncols=3, frameon=False, fontsize=8, columnspacing=1.0, handletextpad=0.3,
    )  # fmt: skip


def _draw_curve(results: StudyResults, sets: Sequence[SetResult]) -> dict[str, bytes]:
    """Accuracy over the axis of the study and, where it was measured, the firing rate."""
    with_rates = any(arm.rate is not None for one in sets for arm in one.arms)

    def draw(axes: Any) -> None:
        for one in sets:
            arms = sorted(_points(results, one, "curve"), key=lambda arm: arm.x or 0.0)
            _line(axes[0][0], [(arm.x, arm.top1) for arm in arms], one.set)
            if with_rates:
                _line(axes[0][1], [(arm.x, arm.rate) for arm in arms if arm.rate is not None], one.set)
        for axis, label in zip(axes[0], ("top-1, %", "mean firing rate"), strict=False):
            axis.set(xlabel=results.axis, ylabel=label, xscale="log" if results.log_axis else "linear")
            axis.legend(*_named(axis))

    return _images(1, 2 if with_rates else 1, (5.0, 3.6), draw)


def _line(axis: Any, points: Sequence[tuple[float | None, Any]], label: str) -> None:
    xs, ys = [x for x, _ in points], [found.mean for _, found in points]
    bars = [found.sd or 0.0 for _, found in points]
    axis.errorbar(xs, ys, yerr=bars, fmt="o-", capsize=3, label=label)


def _draw_conditions(results: StudyResults, sets: Sequence[SetResult]) -> dict[str, bytes]:
    """A panel for each kind of condition and each set; the first point is the accuracy on clips as they are."""
    names = dict.fromkeys(name for one in sets for arm in one.arms for name in arm.conditions)
    kinds = list(dict.fromkeys(parse_condition(name).kind for name in names))

    def draw(axes: Any) -> None:
        for row, one in zip(axes, sets, strict=True):
            for axis, kind in zip(row, kinds, strict=True):
                for arm in _points(results, one, "conditions"):
                    _draw_condition(axis, kind, arm)
                axis.set(title=f"{one.set}: {kind}", xlabel=LABELS[kind], ylabel="top-1, %")
            row[-1].legend(*_named(row[-1]), fontsize=7)

    return _images(len(sets), len(kinds), (4.0, 3.2), draw)


def _draw_condition(axis: Any, kind: str, arm: ArmResult) -> None:
    found = {parse_condition(name): value for name, value in arm.conditions.items()}
    levels = sorted((one.level or 0.0, value) for one, value in found.items() if one.kind == kind)
    if arm.top1 is not None:
        whole = 1.0 if kind == "shortened" else 0.0
        levels = sorted([*levels, (whole, arm.top1)], key=lambda pair: pair[0])
    if all(one.level is None for one in found if one.kind == kind):  # an order of time: with it, and without
        levels = [(index, value) for index, (_, value) in enumerate(reversed(levels))]
        axis.set_xticks([0, 1], ["as they are", kind])
    _line(axis, levels, arm.title)


def _scatter(figure: str, label: str, value: Callable[[ArmResult], float | None], log: bool) -> Drawing:
    """Accuracy against a cost, one panel a set; arms without the cost are left out."""

    def draw_figure(results: StudyResults, sets: Sequence[SetResult]) -> dict[str, bytes]:
        def draw(axes: Any) -> None:
            for axis, one in zip(axes[0], sets, strict=True):
                names = []
                for arm in _points(results, one, figure):
                    x = value(arm)
                    if x is None or arm.top1 is None:
                        continue
                    mine = arm.arm == results.reference
                    axis.errorbar(
                        x, arm.top1.mean, yerr=arm.top1.sd or 0, fmt="o", color=OURS if mine else OTHERS, capsize=2,
                        zorder=3 if mine else 2,
                    )  # fmt: skip
                    names.append((arm.arm, x, arm.top1.mean))
                axis.set(xlabel=label, ylabel="top-1, %", title=one.set)
                axis.margins(0.12, 0.08)
                _cost_axis(axis, [x for _, x, _ in names], log)
                axis.figure.tight_layout()
                to_share = axis.transData + axis.transAxes.inverted()
                place_labels(axis, [FigureLabel(name, *to_share.transform((x, y))) for name, x, y in names])

        return _images(1, len(sets), (5.4, 4.6), draw)

    return draw_figure


def _cost_axis(axis: Any, costs: Sequence[float], log: bool) -> None:
    """Logarithmic where costs differ by much, with enough numbers to read it by."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    span = max(costs) / min(costs) if min(costs) > 0 else 1.0
    if log and span >= LOG_SPAN:
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0,) if span > FULL_SPAN else (1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    else:
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.ticklabel_format(axis="x", useOffset=False)


def _draw_latency(results: StudyResults, sets: Sequence[SetResult]) -> dict[str, bytes]:
    """On the device that most networks were timed on: latencies of two devices do not belong into one figure."""
    timed = Counter(name for one in sets for arm in one.arms for name in arm.latency_ms if "step" not in name)
    device = max(sorted(timed), key=lambda name: (timed[name], name == "cuda"))
    label = f"latency of one clip on a {'GPU' if device == 'cuda' else device.upper()}, ms"
    return _scatter("latency", label, lambda arm: arm.latency_ms.get(device), True)(results, sets)


def _interval_bars(arm: ArmResult) -> list[list[float]] | None:
    top1 = arm.top1
    if top1 is None or top1.low is None or top1.high is None:
        return None
    return [[top1.mean - top1.low], [top1.high - top1.mean]]


def _named(axis: Any) -> tuple[list[Any], list[str]]:
    """Handles and labels of a legend, each label once."""
    found = {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True) if label}
    return list(found.values()), list(found)


FIGURES: dict[str, Drawing] = {
    "accuracy": _arms_below_each_other("accuracy", 1.2, _draw_accuracies),
    "effects": _arms_below_each_other("effects", 1.4, _draw_effects),
    "curve": _draw_curve,
    "conditions": _draw_conditions,
    "parameters": _scatter("parameters", "deployed parameters, M", lambda arm: arm.parameters["deployed"] / 1e6, True),
    "latency": _draw_latency,
    "rates": _scatter("rates", "mean firing rate", lambda arm: arm.rate.mean if arm.rate else None, False),
    "energy": _scatter("energy", "energy of a clip, µJ", lambda arm: arm.cost.microjoules if arm.cost else None, True),
}
