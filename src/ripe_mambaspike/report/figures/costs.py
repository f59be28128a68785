"""Figures of cost: the interface's parameters, and what was measured on a device."""

from typing import Any

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.report.figures.canvas import (
    BASELINE,
    OURS,
    PAPER,
    STAGES,
    THIRD,
    new_figure,
    plain_axes,
    plain_log_ticks,
)
from ripe_mambaspike.studies.tables.measured import NOT_MEASURED
from ripe_mambaspike.studies.tables.printed import printed_table
from ripe_mambaspike.studies.tables.stored import ResultFolders, machine_text, measured_costs

SIDES = (34, 48, 128, 224)
HD = (720, 1280)


def draw_interface() -> Any:
    """Parameters of the two networks against the input's pixels; every marker is counted from a built network."""
    figure = new_figure(7.2, 4.2)
    axes = figure.subplots()
    measured = [(side, side) for side in SIDES]
    counted = [count_parameters(model_config("mamba-spike", in_size=size)) for size in (*measured, HD)]
    pixels = [height * width for height, width in (*measured, HD)]
    joined = [found.by_part["input_proj"] for found in counted]
    ours = [count_parameters(model_config("cifar10dvs", in_size=size)).deployed for size in (*measured, HD)]
    curve = [(side * side, 128 * (side // 4) ** 2 * 256 + 256) for side in range(20, 1140)]  # with its bias
    known = [point for point in curve if point[0] <= SIDES[-1] ** 2]
    beyond = [point for point in curve if point[0] >= known[-1][0]]
    axes.plot(*zip(*known, strict=True), color=BASELINE, label="Linear(C⌊H/4⌋⌊W/4⌋, d): the formula")
    axes.plot(*zip(*beyond, strict=True), "--", color=BASELINE)
    axes.plot(pixels[:-1], joined[:-1], "o", color=BASELINE, label="Mamba-Spike's input_proj, counted")
    axes.plot(pixels[-1:], joined[-1:], "D", color=BASELINE, markerfacecolor="white")
    axes.plot(pixels, ours, "-s", color=OURS, markersize=5, label="RIPE-MambaSpike, whole network, counted")
    printed = printed_table(6)
    for row, size in zip(map(str, SIDES), pixels, strict=False):
        for column in ("its input_proj, M", "RIPE-MambaSpike, M"):
            axes.plot([size], [1e6 * float(printed.cell(row, column) or "nan")], "x", color=PAPER, markersize=8)
    axes.plot([], [], "x", color=PAPER, label="as the paper prints it")
    axes.annotate(
        f"1280×720: {joined[-1] / 1e9:.2f} B\n({4 * joined[-1] / 2**30:.1f} GiB in float32)", (pixels[-1], joined[-1]),
        (-14, 6), textcoords="offset points", ha="right", va="center", fontsize=8.5, color=BASELINE,
    )  # fmt: skip
    axes.annotate(
        f"{ours[0]:,} at every size", (pixels[1], ours[1]), (0, -14), textcoords="offset points", ha="left",
        fontsize=8.5, color=OURS,
    )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="pixels of the input", ylabel="parameters", ylim=(2e5, 6e9))
    axes.set_xticks(pixels, [f"{side}²" for side in SIDES] + ["1280×720"])
    axes.minorticks_off()
    plain_axes(axes)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _documents(results: ResultFolders) -> list[dict[str, Any]]:
    found = measured_costs(results)
    if not found:
        raise InputError(
            f"results: expected a benchmark of the paper's costs, got none; {NOT_MEASURED}", field="results"
        )
    return found


def _three_panels_each(results: ResultFolders) -> tuple[Any, list[tuple[Any, dict[str, Any]]]]:
    """A figure, and of every benchmark its line of three panels and its document."""
    documents = _documents(results)
    figure = new_figure(11, 3.4 * len(documents))
    return figure, list(zip(figure.subplots(len(documents), 3, squeeze=False), documents, strict=True))


def draw_attention_cost(results: ResultFolders) -> Any:
    """Table 16: the three operators, and DS-MPA by width; time of forward and backward, and activations."""
    figure, lines = _three_panels_each(results)
    for line, document in lines:
        found = document["attention"]
        names = {"ds-mpa": "DS-MPA", "gate": "gate", "none": "removed"}
        rows = found["rows"]
        places = range(len(rows))
        line[0].bar(places, [row["backward_ms"] for row in rows], color=STAGES, label="with backward")
        line[0].bar(places, [row["forward_ms"] for row in rows], color="white", alpha=0.55, hatch="//", label="forward")
        line[0].set_xticks(places, [names[row["kind"]] for row in rows])
        line[0].set(ylabel=f"ms, batch {document['batch']}", title="time (hatched: forward alone)")
        line[1].bar(places, [row["activation_mib"] for row in rows], color=STAGES)
        line[1].set_xticks(places, [names[row["kind"]] for row in rows])
        line[1].set(ylabel="MiB", title="activations")
        widths = found["widths"]
        sizes = [row["widths"][0] for row in widths]
        line[2].plot(sizes, [row["backward_ms"] for row in widths], "-o", color=OURS, label="with backward")
        line[2].plot(sizes, [row["forward_ms"] for row in widths], "--o", color=OURS, label="forward")
        line[2].set(
            xscale="log", yscale="log", xlabel="width of stage 1", ylabel="ms, batch 1", title="DS-MPA by width"
        )
        line[2].set_xticks(sizes, [str(size) for size in sizes])
        line[2].minorticks_off()
        plain_log_ticks(line[2].yaxis)
        line[2].legend(frameon=False, fontsize=8)
        plain_axes(*line)
        line[1].set_xlabel(machine_text(document), fontsize=7, color=PAPER, labelpad=14)
    return figure


def draw_latency(results: ResultFolders) -> Any:
    """Table 17: latency at batch 1 and 8, and memory at batch 8."""
    figure, lines = _three_panels_each(results)
    for line, document in lines:
        rows = document["deployment"]
        places = range(len(rows))
        colors = [BASELINE if row["path"] == "mamba-spike" else OURS for row in rows]
        labels = [row["path"].replace("deployed-", "deployed, ").replace("training", "training graph") for row in rows]
        for axes, batch in zip(line, (1, 8), strict=False):
            axes.barh(places, [row[f"batch_{batch}"]["median_ms"] for row in rows], color=colors)
            axes.set(title=f"latency, batch {batch}", xlabel="ms")
        line[2].barh(places, [row["batch_8"]["peak_mib"] for row in rows], color=colors, alpha=0.5)
        line[2].barh(places, [row["batch_8"]["activation_mib"] for row in rows], color=colors)
        line[2].set(title="peak memory, batch 8", xlabel="MiB (dark: activations)")
        for axes in line:
            axes.set_yticks(places, labels if axes is line[0] else [""] * len(rows))
            axes.invert_yaxis()
        plain_axes(*line)
        line[1].set_xlabel(f"ms\n{machine_text(document)}", fontsize=8)
    return figure


def draw_resolution(results: ResultFolders) -> Any:
    """Table 19: training and inference speed and peak memory against the input's side."""
    documents = _documents(results)
    figure = new_figure(11, 3.4)
    panels = figure.subplots(1, 3)
    titles = ("training, clips/s", "inference, clips/s", "peak, GiB")
    printed = printed_table(19)
    for axes, title in zip(panels, titles, strict=True):
        paper = [float(printed.cell(str(side), title) or "nan") for side in SIDES]
        axes.plot(SIDES, paper, "x--", color=PAPER, label=f"paper, {str(printed.measured).split(',')[0]}")
    for color, document in zip((OURS, THIRD, BASELINE), documents, strict=False):
        rows = document["resolution"]
        sides = [row["side"] for row in rows]
        speeds = [[row[kind]["samples_per_second"] for row in rows] for kind in ("training", "inference")]
        columns = [*speeds, [row["training"]["peak_mib"] / 1024 for row in rows]]
        for axes, values in zip(panels, columns, strict=True):
            axes.plot(sides, values, "-o", color=color, label=document["machine"]["name"])
    for axes, title in zip(panels, titles, strict=True):
        axes.set(xscale="log", yscale="log", xlabel="side of the input", title=title)
        axes.set_xticks(SIDES, [str(side) for side in SIDES])
        axes.minorticks_off()
        plain_log_ticks(axes.yaxis)
    panels[0].legend(frameon=False, fontsize=8)
    plain_axes(*panels)
    return figure
