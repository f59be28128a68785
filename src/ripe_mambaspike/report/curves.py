"""The log of a run as charts and as a table, firing rates, and the temporal filters."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from ripe_mambaspike.models.base import Model
from ripe_mambaspike.report.charts import Series, histogram, line_chart
from ripe_mambaspike.report.formatting import duration_text, finite_or_none, number_text, plural
from ripe_mambaspike.report.observe import Observed, layer_names, temporal_filters
from ripe_mambaspike.report.run_data import Column, RunData
from ripe_mambaspike.train.history import COLUMNS

NUM_FREQUENCIES = 65
MAX_BROKEN_COLUMNS = 6  # named in the warning about values that are not finite
MAX_BROKEN_EPOCHS = 5  # named for each of them


class LogLine(NamedTuple):
    """One line of a chart."""

    column: str  # of log.csv: `train.history.COLUMNS`
    name: str  # in the legend
    tone: int  # colour 1 to 6 of templates/report.css
    dashed: bool = False


class LogChart(NamedTuple):
    """One chart over the epochs; `options` are those of `charts.line_chart`."""

    title: str
    lines: tuple[LogLine, ...]
    note: str = ""  # behind the title
    options: Mapping[str, Any] = MappingProxyType({})


CURVES = (  # in the order of the page
    LogChart(
        "Loss",
        (
            LogLine("loss", "training", 1),
            LogLine("hard", "hard pass", 3),
            LogLine("relaxed", "relaxed pass", 4, dashed=True),
            LogLine("val_loss", "validation", 2),
        ),
        "of training the weighted sum, of each pass its own loss",
    ),
    LogChart(
        "Top-1",
        (LogLine("train_top1", "training", 1), LogLine("val_top1", "validation", 2)),
        options={"percent": True},
    ),
    LogChart(
        "Consistency gap",
        (LogLine("consistency", "gap", 4),),
        "mean square between the hard and the relaxed logits",
        {"log": True},
    ),
    LogChart("Gradient norm", (LogLine("grad_norm", "norm", 3),), "before clipping", {"low": 0, "log": True}),
    LogChart("Learning rate", (LogLine("lr", "rate", 1),), options={"low": 0}),
    LogChart(
        "Sharpness α",
        (LogLine("sharpness", "sharpness", 2), LogLine("relaxed_share", "relaxed share", 4, dashed=True)),
        "of the surrogate; share of the relaxed pass",
        {"low": 0},
    ),
)


def log_charts(run: RunData) -> dict[str, Any]:
    """Charts of the loss and its schedule from the log, the missing columns, and values that are not finite."""
    charts: list[Markup] = []
    absent: list[str] = []
    for chart in CURVES if run.log else ():
        series = []
        for line in chart.lines:
            column = run.column(line.column)
            if column is None:
                absent.append(f"{chart.title}: {line.name}")
            else:
                name = "test (selects)" if run.selected_on_test and line.column.startswith("val_") else line.name
                series.append(Series(name, column, line.tone, line.dashed))
        if series:
            shown = {"x_name": "epoch", "note": chart.note, "mark": _selected_epoch(run), **chart.options}
            charts.append(line_chart(chart.title, _epochs(run), series, **shown))
    return {"curves": charts, "absent_columns": absent, "not_finite": _not_finite(run), "epochs": run.epochs}


def rate_charts(run: RunData, observed: Observed) -> dict[str, Markup]:
    """Firing rates of every layer over the epochs, and over the steps of the sample clips."""
    over_epochs = over_steps = Markup()
    if logged := run.numbered("rate"):
        series = _layers(_named(logged))
        over_epochs = line_chart(
            "Over the epochs", _epochs(run), series, x_name="epoch", percent=True, low=0, mark=_selected_epoch(run)
        )
    if observed.rates:
        steps = [float(step) for step in range(1, len(observed.rates[0][1]) + 1)]
        note = f"mean of {plural(len(observed.samples), 'held-out clip')}"
        series = _layers(observed.rates)
        over_steps = line_chart("Over the steps", steps, series, x_name="time step", percent=True, low=0, note=note)
    return {"epoch_rates": over_epochs, "step_rates": over_steps}


def filter_charts(run: RunData, model: Model | None) -> dict[str, Any]:
    """λ of each temporal filter, and the frequency response of each layer's mean filter."""
    found = [] if model is None else temporal_filters(model)
    if not found:
        reason = run.notes.get("best", "This network has no temporal filters.")
        return {"filters": None, "filters_missing": reason}
    finite = [np.abs(values[np.isfinite(values)]) for _, values in found]
    reach = max((float(values.max(initial=0)) for values in finite), default=0.0) * 1.05 or 0.1
    frequencies = np.linspace(0, 0.5, NUM_FREQUENCIES)
    responses: list[tuple[str, Sequence[float | None]]] = [
        (name, response(float(values.mean()), frequencies)) for name, values in found
    ]
    over_epochs = Markup()
    if run.epochs > 1 and (lambdas := run.numbered("tdm")):
        over_epochs = line_chart(
            "Mean |λ| over the epochs", _epochs(run), _layers(_named(lambdas)), x_name="epoch", low=0,
            mark=_selected_epoch(run),
        )  # fmt: skip
    filters = {
        "histograms": [histogram(name, values, reach, 1 + index // 2) for index, (name, values) in enumerate(found)],
        "response": line_chart(
            "Gain of the mean filter",
            frequencies.tolist(),
            _layers(responses),
            x_name="cycles per step",
            note="|(1 + λ) − λ z⁻¹|; 1 changes nothing, above 1 changes are amplified",
        ),
        "over_epochs": over_epochs,
    }
    return {"filters": filters, "filters_missing": ""}


def response(coefficient: float, cycles: np.ndarray) -> list[float | None]:
    """|(1 + λ) − λ e^(−iω)| at these frequencies, in cycles per step."""
    gain = 1 + coefficient
    return np.abs(gain - coefficient * np.exp(-2j * np.pi * cycles)).tolist()


def _named(columns: Sequence[tuple[int, Column]]) -> list[tuple[str, Column]]:
    """The log's layers, numbered from 1, by their names."""
    names = layer_names(max(number for number, _ in columns))
    return [(names[number - 1], column) for number, column in columns if number > 0]


def _layers(columns: Sequence[tuple[str, Sequence[float | None]]]) -> list[Series]:
    """The two layers of a stage share a colour, the first of them dashed."""
    if not any(name.startswith("stage") for name, _ in columns):
        return [Series(name, values, 1 + index % 6) for index, (name, values) in enumerate(columns)]
    return [Series(name, values, int(name.split()[1].rstrip(",")), name.endswith("first")) for name, values in columns]


def _epochs(run: RunData) -> list[float]:
    """The epoch column, or a count where it cannot be used."""
    column = run.log.get("epoch", [])
    known = [value for value in column if value is not None and 0 <= value < 1e9]
    if len(known) == run.epochs and all(a < b for a, b in pairwise(known)):
        return known
    return [float(index) for index in range(1, run.epochs + 1)]


def _selected_epoch(run: RunData) -> tuple[float, str] | None:
    epoch = finite_or_none(run.result.get("epoch"))
    return None if epoch is None or run.epochs < 2 else (epoch, "selected")


def _not_finite(run: RunData) -> str:
    """Where the log holds something that is not a finite number."""
    epochs, found = _epochs(run), []
    for name, column in run.log.items():
        pairs = zip(epochs, column, strict=False)
        broken = [number_text(epoch) for epoch, value in pairs if value is not None and not math.isfinite(value)]
        if broken and name != "epoch":
            more = " …" if len(broken) > MAX_BROKEN_EPOCHS else ""
            found.append(f"{name} in epoch {', '.join(broken[:MAX_BROKEN_EPOCHS])}{more}")
    left_out = len(found) - MAX_BROKEN_COLUMNS
    more = f" and {left_out} more columns" if left_out > 0 else ""
    return f"Not finite: {'; '.join(found[:MAX_BROKEN_COLUMNS])}{more}." if found else ""


def log_table(run: RunData) -> dict[str, Any] | None:
    """Every column in a row: its first and last value and its range."""
    if not run.log:
        return None
    seconds, speed, memory = (
        _finite(run.log.get(name, [])) for name in ("seconds", "samples_per_second", "memory_mib")
    )
    facts = [plural(run.epochs, "epoch")]
    facts += [f"{duration_text(max(seconds))} in all"] if seconds else []  # the column is cumulative
    facts += [f"{number_text(sum(speed) / len(speed), 3)} clips a second on average"] if speed else []
    facts += [f"at most {number_text(max(memory), 3)} MiB"] if memory else []
    return {"summary": ", ".join(facts), "columns": [_column(name, column) for name, column in run.log.items()]}


def _column(name: str, column: Column) -> dict[str, Any]:
    values = _finite(column)
    known = [value for value in column if value is not None]
    return {
        "name": name,
        "meaning": COLUMNS.get(name, ""),
        "first": known[0] if known else None,
        "last": known[-1] if known else None,
        "least": min(values, default=None),
        "most": max(values, default=None),
        "empty": len(column) - len(known),
        "broken": len(known) - len(values),
    }


def _finite(column: Column) -> list[float]:
    return [value for value in column if value is not None and math.isfinite(value)]
