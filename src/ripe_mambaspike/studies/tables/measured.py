"""The tables that the paper measured on a device (16, 17 and 19), from stored benchmarks of this package."""

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ripe_mambaspike.models.registry import meta_model, model_config
from ripe_mambaspike.studies.claims.variants import attention_size, counted
from ripe_mambaspike.studies.tables.printed import printed_table
from ripe_mambaspike.studies.tables.stored import ResultFolders, machine_text, measured_costs
from ripe_mambaspike.studies.tables.table import Ours, PaperTable, TableCell, beside

NOT_MEASURED = "not measured yet: ripe bench paper --json > benchmarks/results/DATE-DEVICE-paper.json"
OTHER_DEVICE = "The paper measured on an {paper}; times on another device are not expected to agree, their ratios may."
PATHS = {"deployed-kernels": "deployed, our kernels", "deployed-captured": "deployed, prepared and captured"}


KINDS = ("ds-mpa", "gate", "none")


class _Texts(TypedDict):
    notes: list[str]
    sources: list[str]
    missing: list[str]


def attention_cost_table(folders: ResultFolders) -> PaperTable:
    """Table 16."""
    printed = printed_table(16)
    ours: dict[str, dict[str, Ours]] = {kind: {"parameters": attention_size(attention=kind)} for kind in KINDS}
    for first in (32, 64, 128):
        widths = (first, 2 * first, 4 * first)
        ours[f"width-{first}"] = {"parameters": attention_size(stage_channels=widths)}
    notes = []
    documents = measured_costs(folders)
    for document in documents:
        found = document["attention"]
        keyed = {row["kind"]: row for row in found["rows"]}
        keyed |= {f"width-{row['widths'][0]}": row for row in found["widths"]}
        fields = ("forward_ms", "backward_ms", "activation_mib")
        _add(ours, document, printed.columns[1:], {key: [row[name] for name in fields] for key, row in keyed.items()})
        notes += _attention_notes(document)
    return beside(16, printed, ours, more=_columns(ours, printed.columns), **_texts(documents, printed.measured, notes))


def _attention_notes(document: dict[str, Any]) -> list[str]:
    """The share of a training step, and how stable the ratio to the gate is."""
    found, name = document["attention"], document["machine"]["name"]
    steps = {kind: step["median_ms"] for kind, step in found["steps"].items()}
    alone = {row["kind"]: row["backward_ms"] for row in found["rows"]}
    share, saved = (100 * value / steps["ds-mpa"] for value in (alone["ds-mpa"], steps["ds-mpa"] - steps["none"]))
    ratios = [one["over_gate"] for one in found["ratios"]]
    mean = sum(ratios) / len(ratios)
    spread = 100 * max(abs(ratio / mean - 1) for ratio in ratios)
    batches = "/".join(str(one["batch"]) for one in found["ratios"])
    return [
        f"{name}: a training step of batch {document['batch']} takes {steps['ds-mpa']:.2f} ms; DS-MPA alone, in plain "
        f"PyTorch, is {share:.1f} % of that (paper 7.9 %). A step without attention takes {steps['none']:.2f} ms, so "
        f"that removing it saves {saved:.1f} %; with the gate {steps['gate']:.2f} ms.",
        f"{name}: DS-MPA over gate is {'/'.join(f'{ratio:.2f}' for ratio in ratios)} at batch {batches}, stable to "
        f"±{spread:.1f} % (paper 3.30/3.33/3.31/3.28, ±0.8 %).",
    ]


def latency_table(folders: ResultFolders) -> PaperTable:
    """Table 17; our weights are those of this package's networks, whatever the device."""
    printed = printed_table(17)
    ours: dict[str, dict[str, Ours]] = {path: {"weights, MiB": mebibytes} for path, mebibytes in _weights().items()}
    notes = []
    documents = measured_costs(folders)
    for document in documents:
        rows = {row["path"]: row for row in document["deployment"]}
        values = {path: [row["batch_1"]["median_ms"], row["batch_8"]["median_ms"], row["batch_8"]["peak_mib"],
                         row["batch_8"]["activation_mib"]] for path, row in rows.items()}  # fmt: skip
        _add(ours, document, printed.columns[1:], values)
        ratio = values["training"][1] / values["deployed"][1]
        memory = values["deployed"][3] / values["mamba-spike"][3]
        own = values["deployed-kernels"][3] / values["mamba-spike"][3]
        notes.append(
            f"{document['machine']['name']}: fusing the training graph makes batch 8 {ratio:.2f}× faster in plain "
            f"PyTorch (paper 1.53×); activations are {memory:.2f}× those of Mamba-Spike (paper 3.83×), with our "
            f"kernels {own:.2f}×."
        )
    if documents:
        notes.append("Peak memory here counts weights, input and activations of the call.")
    more = _columns(ours, printed.columns)
    texts = _texts(documents, printed.measured, notes)
    return beside(17, printed, ours, more=more, extra=PATHS if documents else None, **texts)


def _weights() -> dict[str, float]:
    """MiB of parameters and buffers of the networks in float32, counted now."""
    baseline = model_config("mamba-spike", num_classes=11, time_steps=16)
    own = model_config("dvsgesture")
    models = {"mamba-spike": meta_model(baseline), "training": meta_model(own), "deployed": meta_model(own.deployed())}
    sizes = {name: [*model.parameters(), *model.buffers()] for name, model in models.items()}
    return {name: sum(tensor.nbytes for tensor in tensors) / 2**20 for name, tensors in sizes.items()}


def resolution_cost_table(folders: ResultFolders) -> PaperTable:
    """Table 19."""
    printed = printed_table(19)
    ours: dict[str, dict[str, Ours]] = {
        side: {"deployed, M": counted(in_size=int(side)).deployed / 1e6} for side in printed.rows
    }
    notes = []
    documents = measured_costs(folders)
    for document in documents:
        values = {}
        for row in document["resolution"]:
            speeds = [row[kind]["samples_per_second"] for kind in ("training", "inference")]
            values[str(row["side"])] = [*speeds, row["training"]["peak_mib"] / 1024]
        _add(ours, document, printed.columns[1:], values)
        if "34" in values and "224" in values:
            growth = values["224"][2] / values["34"][2]
            notes.append(f"{document['machine']['name']}: peak memory grows {growth:.0f}× over the range (paper ~30×).")
    return beside(19, printed, ours, more=_columns(ours, printed.columns), **_texts(documents, printed.measured, notes))


def _add(
    ours: dict[str, dict[str, Ours]],
    document: dict[str, Any],
    columns: Iterable[str],
    values: Mapping[str, list[float]],
) -> None:
    """Add the values of a device under columns of their own."""
    names = [f"{column}, {document['machine']['name']}" for column in columns]
    for row, numbers in values.items():
        cells = {
            name: TableCell(f"{value:,.4g}", numbers={"value": value})
            for name, value in zip(names, numbers, strict=True)
        }
        ours.setdefault(row, {}).update(cells)


def _columns(ours: Mapping[str, Mapping[str, Ours]], printed: Iterable[str]) -> list[str]:
    """Our columns beyond the printed ones, in order."""
    return list(dict.fromkeys(name for row in ours.values() for name in row if name not in printed))


def _texts(documents: list[dict[str, Any]], measured: str | None, notes: list[str]) -> _Texts:
    about = [] if measured is None or not documents else [OTHER_DEVICE.format(paper=measured)]
    sources = [f"{machine_text(document)}, {document['precision']}" for document in documents]
    return {"notes": [*notes, *about], "sources": sources, "missing": [] if documents else [NOT_MEASURED]}
