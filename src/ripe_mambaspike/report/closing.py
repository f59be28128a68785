"""The end of the page: what the network costs, the recipe, and what the log holds."""

import math
from collections.abc import Sequence
from typing import Any

from ripe_mambaspike.report.curves import missing_note
from ripe_mambaspike.report.formatting import (
    count_text,
    duration_text,
    escaped,
    escaped_text,
    number_text,
    percent_text,
    plural,
)
from ripe_mambaspike.report.marks import bar
from ripe_mambaspike.report.run_data import Column, RunData

MEANING = {
    "epoch": "epoch, from 1",
    "lr": "learning rate",
    "sharpness": "α of surrogate and relaxation",
    "relaxed_share": "w, share of the relaxed pass in the loss",
    "loss": "the whole objective",
    "hard": "TET of the hard pass",
    "relaxed": "TET of the relaxed pass",
    "consistency": "mean square between both passes' logits",
    "rate": "mean firing rate of all layers",
    "grad_norm": "norm of the whole gradient before clipping",
    "train_top1": "top-1 on the training batches",
    "val_loss": "loss on the validation part",
    "val_top1": "top-1 on the validation part",
    "seconds": "time since the run began, without what it was stopped",
    "samples_per_second": "clips a second",
    "memory_mib": "most memory held, MiB",
}


def costs(run: RunData, document: dict[str, Any] | None, unavailable_reason: str) -> str:
    """The account: parameters, operations, bytes, energy."""
    if document is None:
        return missing_note(unavailable_reason)
    at = document["counted_at"]
    height, width = at["resolution"]
    return (
        f"<p>Of one clip of {at['steps']} steps at {height} × {width}, counted.</p>"
        f'<div class="grid wide">{_parameters(document)}{_flops(document["flops"])}</div>{_energy(document["energy"])}'
    )


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], foot: Sequence[str] = ()) -> str:
    """Cells are markup already; the first of a row names it."""

    def row(cells: Sequence[str]) -> str:
        return f"<tr><th>{cells[0]}</th>{''.join(f'<td>{cell}</td>' for cell in cells[1:])}</tr>"

    header = "".join(f"<th>{cell}</th>" for cell in head)
    tail = f"<tfoot>{row(foot)}</tfoot>" if foot else ""
    return (
        f'<div class="card scroll"><h3>{title}</h3><table><thead><tr>{header}</tr></thead>'
        f"<tbody>{''.join(map(row, rows))}</tbody>{tail}</table></div>"
    )


def _parameters(document: dict[str, Any]) -> str:
    parameters = document["parameters"]
    rows = [
        (escaped(part.replace("_", " ")), count_text(parameters["training_by_part"][part]), count_text(count))
        for part, count in parameters["by_part"].items()
    ]
    sizes = "; ".join(f"{count / 1e6:.2f} MB as {kind}" for kind, count in document["weight_bytes"].items())
    foot = ("total", count_text(parameters["training"]), count_text(parameters["deployed"]))
    return _table(f"Parameters <small>{escaped(sizes)}</small>", ("part", "training", "deployed"), rows, foot)


def _flops(flops: dict[str, Any]) -> str:
    total = flops["total"]
    rows = [
        (escaped(part.replace("_", " ")), bar(count / total), number_text(count / 1e9), percent_text(count / total))
        for part, count in flops["by_part"].items()
    ]
    foot = ("total", "", number_text(total / 1e9), "")
    title = "GFLOP <small>deployed; a multiply-add is two</small>"
    return _table(title, ("part", "", "GFLOP", "share"), rows, foot)


def _energy(energy: dict[str, Any]) -> str:
    about = energy["assumptions"]
    rows = [
        (
            escaped(layer["layer"]),
            "spikes" if layer["binary"] else "event counts",
            number_text(layer["rate"], 3),
            number_text(layer["macs"] / 1e6),
            "–" if layer["accumulates"] is None else number_text(layer["accumulates"] / 1e6),
        )
        for layer in energy["layers"]
    ]
    words = []
    for part, label in (("backbone", "spiking part"), ("network", "whole network")):
        dense, event = energy[f"{part}_dense_microjoules"], energy[f"{part}_event_microjoules"]
        share = percent_text(energy[f"eligible_share_of_{part}"])
        words.append(
            f"<li>{label}: <b>{number_text(dense)} µJ</b> dense, <b>{number_text(event)} µJ</b> with additions for the "
            f"{share} of it that reads spikes</li>"
        )
    head = ("convolution", "operand", "mean", "dense, M MAC", "by additions, M AC")
    table = _table(f"Energy <small>measured on {escaped(about['measured_on'])}</small>", head, rows)
    return (
        f"{table}<p>An estimate at {escaped(about['technology'])}, {about['mac_picojoules']} pJ a multiply-add and "
        f"{about['ac_picojoules']} pJ an addition, leaving out {escaped(about['left_out'])}:</p>"
        f"<ul>{''.join(words)}</ul>"
    )


def recipe(run: RunData) -> str:
    if run.recipe is None:
        return missing_note(run.notes.get("recipe.yaml", "The recipe is not there."))
    return f'<pre class="card">{escaped_text(run.recipe)}</pre>'


def log_contents(run: RunData) -> str:
    """Every column in a row: its first and last value and its range."""
    if not run.log:
        return missing_note(run.notes.get("log.csv", "The log holds no epoch."))
    head = ("column", "what", "first", "last", "least", "most", "gaps")
    rows = [_log_row(name, column) for name, column in run.log.items()]
    seconds = _finite(run.log.get("seconds", []))
    speed = _finite(run.log.get("samples_per_second", []))
    memory = _finite(run.log.get("memory_mib", []))
    facts = [plural(run.epochs, "epoch")]
    facts += [f"{duration_text(max(seconds))} in all"] if seconds else []  # the column counts on from epoch to epoch
    facts += [f"{number_text(sum(speed) / len(speed), 3)} clips a second on average"] if speed else []
    facts += [f"at most {number_text(max(memory), 3)} MiB"] if memory else []
    return f"<p>log.csv: {', '.join(facts)}.</p>{_table('Columns', head, rows)}"


def _log_row(name: str, column: Column) -> tuple[str, ...]:
    values = _finite(column)
    empty = sum(value is None for value in column)
    broken = len(column) - empty - len(values)
    gaps = [f"{empty} empty"] if empty else []
    gaps += [f'<b class="warn">{broken} not finite</b>'] if broken else []
    what = MEANING.get(name, "")
    prefix, _, number = name.rpartition("_")
    if number.isdecimal() and prefix in ("rate", "tdm"):
        what = f"{'mean firing rate' if prefix == 'rate' else 'mean |λ|'} of layer {number}"
    known: list[float | None] = [value for value in column if value is not None]
    first, last = (known[0], known[-1]) if known else (None, None)
    least, most = (min(values), max(values)) if values else (None, None)
    shown = (number_text(value) for value in (first, last, least, most))
    return (f"<code>{escaped(name, 40)}</code>", what, *shown, ", ".join(gaps) or "–")


def _finite(column: Column) -> list[float]:
    return [value for value in column if value is not None and math.isfinite(value)]
