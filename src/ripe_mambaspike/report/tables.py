"""The page's tables: what the network costs, and what the log holds."""

import math
from typing import Any

from ripe_mambaspike.report.formatting import count_text, duration_text, number_text, percent_text, plural
from ripe_mambaspike.report.run_data import Column, RunData

COLUMN_MEANINGS = {
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
    "seconds": "time since the run began, without interruptions",
    "samples_per_second": "clips a second",
    "memory_mib": "peak memory, MiB",
}


def account_tables(document: dict[str, Any]) -> dict[str, Any]:
    """Parameters, operations, bytes and energy as the page's tables."""
    parameters, flops, energy, at = (document[key] for key in ("parameters", "flops", "energy", "counted_at"))
    about = energy["assumptions"]
    return {
        "time_steps": at["time_steps"],
        "in_size": " × ".join(map(str, at["in_size"])),
        "sizes": "; ".join(f"{count / 1e6:.2f} MB as {kind}" for kind, count in document["weight_bytes"].items()),
        "parameters": [
            (part.replace("_", " "), count_text(parameters["training_by_part"][part]), count_text(count))
            for part, count in parameters["by_part"].items()
        ],
        "parameters_total": ("total", count_text(parameters["training"]), count_text(parameters["deployed"])),
        "flops": [
            (part.replace("_", " "), number_text(count / 1e9), count / flops["total"])
            for part, count in flops["by_part"].items()
        ],
        "flops_total": number_text(flops["total"] / 1e9),
        "measured_on": about["measured_on"],
        "technology": about["technology"],
        "mac_picojoules": about["mac_picojoules"],
        "ac_picojoules": about["ac_picojoules"],
        "left_out": about["left_out"],
        "layers": [_layer(layer) for layer in energy["layers"]],
        "energy": [
            {
                "part": label,
                "dense": number_text(energy[f"{part}_dense_microjoules"]),
                "event": number_text(energy[f"{part}_event_microjoules"]),
                "share": percent_text(energy[f"eligible_share_of_{part}"]),
            }
            for part, label in (("backbone", "spiking part"), ("network", "whole network"))
        ],
    }


def _layer(layer: dict[str, Any]) -> tuple[str, ...]:
    accumulates = layer["accumulates"]
    return (
        layer["layer"],
        "spikes" if layer["binary"] else "event counts",
        number_text(layer["rate"], 3),
        number_text(layer["macs"] / 1e6),
        "–" if accumulates is None else number_text(accumulates / 1e6),
    )


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
    meaning = COLUMN_MEANINGS.get(name, "")
    prefix, _, number = name.rpartition("_")
    if number.isdecimal() and prefix in ("rate", "tdm"):
        meaning = f"{'mean firing rate' if prefix == 'rate' else 'mean |λ|'} of layer {number}"
    return {
        "name": name,
        "meaning": meaning,
        "first": known[0] if known else None,
        "last": known[-1] if known else None,
        "least": min(values, default=None),
        "most": max(values, default=None),
        "empty": len(column) - len(known),
        "broken": len(known) - len(values),
    }


def _finite(column: Column) -> list[float]:
    return [value for value in column if value is not None and math.isfinite(value)]
