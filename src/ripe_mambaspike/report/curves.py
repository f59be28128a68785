"""What changed over the epochs: losses, scores, schedule, rates; and over the steps of a clip."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ripe_mambaspike.models.base import Model
from ripe_mambaspike.report.charts import Series, line_chart
from ripe_mambaspike.report.formatting import escaped, finite_or_none, number_text, plural
from ripe_mambaspike.report.marks import histogram
from ripe_mambaspike.report.observe import Observed, layer_names, temporal_filters
from ripe_mambaspike.report.run_data import Column, RunData

FREQUENCIES = 65


def missing_note(sentence: str) -> str:
    return f'<p class="missing">{escaped(sentence, 400)}</p>'


def curves(run: RunData) -> str:
    """All that the log says about the loss and what drives it."""
    if not run.log:
        return missing_note(run.notes.get("log.csv", "The log holds no epoch."))
    epochs, mark = _epochs(run), _mark(run)
    made, absent = [], []
    for title, note, columns, options in CURVES:
        series = [
            Series(name, column, tone, dashed)
            for key, name, tone, dashed in columns
            if (column := run.column(key)) is not None
        ]
        if series:
            percent, low, log = options
            chart = line_chart(
                title, epochs, series, x_name="epoch", note=note, percent=percent, low=low, log=log, mark=mark
            )
            made.append(chart)
        absent += [name for key, name, _, _ in columns if run.column(key) is None]
    out = f'<div class="grid">{"".join(made)}</div>'
    if run.epochs == 1:
        out = missing_note("One epoch only: each curve is a single point.") + out
    if absent:
        out += missing_note(f"Not in the log: {', '.join(absent)}.")
    return out + _broken(run)


Options = tuple[bool, float | None, bool]  # percent, lowest value, logarithm allowed
CURVES: list[tuple[str, str, list[tuple[str, str, int, bool]], Options]] = [
    (
        "Loss",
        "terms before their weight",
        [
            ("loss", "training", 1, False),
            ("hard", "hard pass", 3, False),
            ("relaxed", "relaxed pass", 4, True),
            ("val_loss", "validation", 2, False),
        ],
        (False, None, False),
    ),
    (
        "Top-1",
        "",
        [("train_top1", "training", 1, False), ("val_top1", "validation", 2, False)],
        (True, None, False),
    ),
    (
        "Consistency gap",
        "mean square between the hard and the relaxed logits",
        [("consistency", "gap", 4, False)],
        (False, None, True),
    ),
    ("Gradient norm", "before clipping", [("grad_norm", "norm", 3, False)], (False, 0, True)),
    ("Learning rate", "", [("lr", "rate", 1, False)], (False, 0, False)),
    (
        "Sharpness α",
        "of the surrogate; share of the relaxed pass",
        [("sharpness", "sharpness", 2, False), ("relaxed_share", "relaxed share", 4, True)],
        (False, 0, False),
    ),
]


def firing(run: RunData, observed: Observed) -> str:
    """Rates of every layer over the epochs, and over the steps of the sample clips."""
    made = []
    logged = run.numbered("rate")
    note = ""
    if logged:
        series = _layers(_named(logged))
        made.append(
            line_chart("Over the epochs", _epochs(run), series, x_name="epoch", percent=True, low=0, mark=_mark(run))
        )
    else:
        note += missing_note("The log holds no firing rates.")
    if observed.rates:
        steps = [float(step) for step in range(1, len(observed.rates[0][1]) + 1)]
        series = _layers(observed.rates)
        about = f"mean of {plural(len(observed.samples), 'held-out clip')}"
        made.append(line_chart("Over the steps", steps, series, x_name="time step", percent=True, low=0, note=about))
    else:
        note += missing_note("No rates over the steps: no held-out clips were at hand that the network could run.")
    return (f'<div class="grid wide">{"".join(made)}</div>' if made else "") + note


def modulation(run: RunData, model: Model | None) -> str:
    """λ of each temporal filter, and what the mean filter of each layer lets through."""
    if model is None:
        return missing_note(run.notes.get("best", "The picked network is not there."))
    found = temporal_filters(model)
    if not found:
        return missing_note("This network has no temporal filters.")
    finite_ones = [np.abs(values[np.isfinite(values)]) for _, values in found]
    reach = max((float(values.max(initial=0)) for values in finite_ones), default=0.0) * 1.05 or 0.1
    small = "".join(histogram(name, values, reach, 1 + index // 2) for index, (name, values) in enumerate(found))
    places = np.linspace(0, 0.5, FREQUENCIES)
    responses: list[tuple[str, Sequence[float | None]]] = [
        (name, response(float(values.mean()), places)) for name, values in found
    ]
    chart = line_chart(
        "What the mean filter lets through",
        places.tolist(),
        _layers(responses),
        x_name="cycles a step",
        note="|(1 + λ) − λ z⁻¹|; 1 changes nothing, above it change is stressed",
    )
    lambdas = run.numbered("tdm")
    over = ""
    if lambdas and run.epochs > 1:
        series = _layers(_named(lambdas))
        over = line_chart("Mean |λ| over the epochs", _epochs(run), series, x_name="epoch", low=0, mark=_mark(run))
    return f'<div class="grid">{small}</div><div class="grid wide">{chart}{over}</div>'


def response(coefficient: float, cycles: np.ndarray) -> list[float | None]:
    """|(1 + λ) − λ e^(−iω)| at so many cycles a step."""
    kept = 1 + coefficient
    return np.abs(kept - coefficient * np.exp(-2j * np.pi * cycles)).tolist()


def _named(columns: Sequence[tuple[int, Column]]) -> list[tuple[str, Column]]:
    """The log's layers, numbered from 1, by their names."""
    names = layer_names(max(number for number, _ in columns))
    return [(names[number - 1], column) for number, column in columns if number > 0]


def _layers(columns: Sequence[tuple[str, Sequence[float | None]]]) -> list[Series]:
    """Two layers a stage share a colour, the first of them dashed."""
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


def _mark(run: RunData) -> tuple[float, str] | None:
    epoch = finite_or_none(run.result.get("epoch"))
    return None if epoch is None or run.epochs < 2 else (epoch, "picked")


def _broken(run: RunData) -> str:
    """Where the log holds something that is no finite number."""
    epochs = _epochs(run)

    def places(column: Column) -> list[str]:
        return [
            number_text(epoch)
            for epoch, value in zip(epochs, column, strict=False)
            if value is not None and not math.isfinite(value)
        ]

    found = {name: where for name, column in run.log.items() if name != "epoch" and (where := places(column))}
    if not found:
        return ""
    words = [f"{name} in epoch {', '.join(where[:5])}{' …' if len(where) > 5 else ''}" for name, where in found.items()]
    more = f" and {len(words) - 6} more columns" if len(words) > 6 else ""
    return f'<p class="missing warn">Not finite: {escaped("; ".join(words[:6]), 600)}{more}.</p>'
