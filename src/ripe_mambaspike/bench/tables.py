"""The documents of the benchmarks as tables, for the terminal and for the files in benchmarks/results.

No speed-up is shown for a result that does not agree with the reference.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]
Cell = str | float | None  # None: not measured


class Table(NamedTuple):
    """The first `labels` columns are text, the others numbers. Notes follow the table."""

    title: str
    columns: Sequence[str]
    rows: list[list[Cell]]
    labels: int
    notes: list[str]


def tables_of(document: Row) -> list[Table]:
    """The tables of one benchmark's document."""
    if "models" in document:
        return {"infer": _compared_infer, "train": _compared_train}[document["bench"]](document)
    kinds = {"infer": _infer, "train": _train, "ops": _operators, "scan": _scan, "paper": _paper}
    return kinds[document["bench"]](document)


def machine_line(machine: Row) -> str:
    """The machine, versions and peak rates of a document's measurements."""
    threads = f", {machine['threads']} threads" if machine["device"] == "cpu" else ""
    commit = f", commit {machine['commit'][:12]}" if machine["commit"] else ""
    rates = [f"{p} products {r / 1e12:,.4g} TFLOP/s" for p, r in machine.get("matrix_flops_per_second", {}).items()]
    if rates:
        rates.append(f"memory {machine['memory_bytes_per_second'] / 1e9:,.4g} GB/s")
    about = f"{machine['name']}{threads}, torch {machine['torch']}{commit}, {machine['date']}"
    return "; ".join([about, *rates])


def agrees(part: Any) -> bool:
    """Whether every comparison in a document holds."""
    if isinstance(part, dict):
        return part.get("agrees", True) and all(map(agrees, part.values()))
    return all(map(agrees, part)) if isinstance(part, list) else True


def paths_of(row: Row) -> dict[str, Row]:
    """The paths that a row measured, or failed to measure, by name."""
    return {
        name: cell for name, cell in row.items() if isinstance(cell, dict) and ("median_ms" in cell or "error" in cell)
    }


TIMES = ("median_ms", "p95_ms", "samples_per_second", "peak_mib", "activation_mib")
TIME_COLUMNS = ("median ms", "p95 ms", "samples/s", "peak MiB", "activations MiB")


def _infer(document: Row) -> list[Table]:
    height, width = document["in_size"]
    title = f"{document['model']}, deployed, T {document['time_steps']}, {height}×{width}"
    columns = ("network", "batch", *TIME_COLUMNS, "of matrix rate", "of memory rate", "× its FLOPs")
    made = []
    for precision in dict.fromkeys(row["precision"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["precision"] == precision]
        cells: list[list[Cell]] = [
            [name, row["batch"], *(cell.get(key) for key in TIMES), *_shares(cell)]
            for row in rows
            for name, cell in paths_of(row).items()
        ]
        notes = [f"batch {row['batch']}: {_verdict(row)}" for row in rows]
        made.append(Table(f"{title}, {precision}", columns, cells, 1, notes))
    made[-1].notes.extend(
        [
            "activations: memory beyond weights and input; of memory rate: the least bytes that must move (events, "
            "outputs of the convolutions, tokens and logits, each once) over what memory could move in that time",
            "× its FLOPs: the time over that of its products alone at the measured matrix rate",
        ]
    )
    return made


def _shares(cell: Row) -> list[Cell]:
    shares = (cell.get("matrix_share"), cell.get("memory_share"))
    return [*(None if share is None else f"{100 * share:.1f} %" for share in shares), cell.get("times_its_flops")]


def _train(document: Row) -> list[Table]:
    height, width = document["in_size"]
    passes = "one pass" if document["passes"] == 1 else "both passes"
    title = f"One training step, {document['recipe']}, batch {document['batch']}, {passes}, "
    cells: list[list[Cell]] = [[name, *(cell.get(key) for key in TIMES)] for name, cell in paths_of(document).items()]
    title += f"T {document['time_steps']}, {height}×{width}, {document['precision']}"
    return [Table(title, ("path", *TIME_COLUMNS), cells, 1, [_verdict(document)])]


PATHS_NOTE = "plain: the network called as it is; captured: prepared for one input shape, on a GPU as one CUDA graph"


def _compared_infer(document: Row) -> list[Table]:
    height, width = document["in_size"]
    columns = ("network", "path", "batch", *TIME_COLUMNS, "× its FLOPs")
    made = []
    for precision in dict.fromkeys(row["precision"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["precision"] == precision]
        cells: list[list[Cell]] = [
            [row["model"], path, row["batch"], *(cell.get(key) for key in TIMES), cell.get("times_its_flops")]
            for row in rows
            for path, cell in paths_of(row).items()
        ]
        title = f"Networks, T {document['time_steps']}, {height}×{width}, {precision}"
        made.append(Table(title, columns, cells, 2, _compared_notes(rows)))
    fused = sorted({row["model"] for row in document["rows"] if row["form"] == "deployed"})
    made[-1].notes.extend(
        [
            PATHS_NOTE + (f"; {', '.join(fused)}: deployed" if fused else ""),
            "activations: memory beyond weights and input",
            "× its FLOPs: the time over that of its products alone at the measured matrix rate",
        ]
    )
    return made


def _compared_train(document: Row) -> list[Table]:
    height, width = document["in_size"]
    title = f"One training step by the recipe {document['recipe']}, batch {document['batch']}, "
    title += f"T {document['time_steps']}, {height}×{width}, {document['precision']}"
    rows = document["rows"]
    cells: list[list[Cell]] = [
        [row["model"], "hard" if row["passes"] == 1 else "hard and relaxed", path, *(cell.get(key) for key in TIMES)]
        for row in rows
        for path, cell in paths_of(row).items()
    ]
    alone = [row for row in rows if "note" in row]
    notes = _compared_notes(rows)
    if alone:
        notes.append(f"{', '.join(row['model'] for row in alone)}: {alone[0]['note']}")
    return [Table(title, ("network", "passes", "path", *TIME_COLUMNS), cells, 3, [*notes, PATHS_NOTE])]


def _compared_notes(rows: list[Row]) -> list[str]:
    """One line for all rows that agree, and one for each that does not or was not measured."""
    notes = []
    checked = [row for row in rows if "agreement" in row]
    right = [row for row in checked if row["agreement"]["agrees"]]
    if right:
        worst: dict[str, float] = {}
        for row in right:
            for what, check in row["agreement"]["checks"].items():
                worst[what] = max(worst.get(what, 0.0), check["found"])
        notes.append(
            f"{len(right)} of {len(rows)} agree: " + ", ".join(f"{w} at most {v:.1e}" for w, v in worst.items())
        )
    for row in rows:
        where = f"{row['model']}" + (f", batch {row['batch']}" if "batch" in row else "")
        if row not in right:
            notes.append(f"{where}: {row['summary'] if row in checked else row['plain']['error']}")
    return notes


def _operators(document: Row) -> list[Table]:
    sizes = f"batch {document['batch']}, T {document['time_steps']}, {document['side']}×{document['side']}"
    made = []
    for precision in dict.fromkeys(row["precision"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["precision"] == precision]
        made.append(_operator_table(f"Operators, {sizes}, {precision}", rows))
    return made


def _operator_table(title: str, rows: list[Row]) -> Table:
    columns = ("operator", "", "ours ms", "p95", "reference ms", "p95", "speed-up", "ours MiB", "reference MiB")
    cells: list[list[Cell]] = []
    notes = []
    for row in rows:
        name = f"{row['operator']}, {row['setting']}"
        if "unavailable" in row:
            notes.append(f"{name}: not measured, {row['unavailable']}")
            continue
        if not row["agreement"]["agrees"]:
            notes.append(f"{name}: {row['summary']}; no speed-up is given")
        for part, label in (("forward", "forward"), ("backward", "+ backward")):
            if part in row:
                both = (row[part]["ours"], row[part]["reference"])
                times = (one.get(key) for one in both for key in ("median_ms", "p95_ms"))
                memory = (one.get("activation_mib") for one in both)
                cells.append([name, label, *times, _times(row[part]["speedup"]), *memory])
    return Table(title, columns, cells, 2, notes)


def _scan(document: Row) -> list[Table]:
    title = f"{document['model']}, deployed, batch {document['batch']}, {document['precision']}"
    made = []
    for name, label in (("in_size", "input size"), ("time_steps", "time steps")):
        swept = document[name]
        keys = ("time_steps", "pixels_times_steps", "median_ms", "p95_ms")
        rows: list[list[Cell]] = [[f"{row['side']}²", *(row[key] for key in keys)] for row in swept["rows"]]
        fit = f"{swept['intercept_ms']:.4g} ms + {swept['ms_per_million']:.4g} ms per million pixels·T"
        low = "" if swept["r2"] >= document["min_r2"] else f", below {document['min_r2']}"
        note = f"least squares: {fit}, R² {swept['r2']:.4f}{low}"
        columns = ("side", "T", "pixels·T", "median ms", "p95 ms")
        made.append(Table(f"{title}, by {label}", columns, rows, 1, [note]))
    made[0].notes.append(document["summary"])
    return [*made, _operator_table(f"The scan alone, width {document['scan']['width']}", document["scan"]["rows"])]


def _verdict(row: Row) -> str:
    """The agreement, the speed-up, and why a path was not measured."""
    failed = "".join(f"; {name}: {cell['error']}" for name, cell in paths_of(row).items() if "error" in cell)
    if not row["agreement"]["agrees"]:
        return f"{row['summary']}; no speed-up is given{failed}"
    gain = "" if row["speedup"] is None else f"; {_times(row['speedup'])} the reference path's speed"
    plain = row.get("plain_over_captured")
    called = "" if plain is None else f"; model(x) takes {_times(plain)} the captured network's time"
    return f"{row['summary']}{gain}{called}{failed}"


def _times(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} ×"


def _paper(document: Row) -> list[Table]:
    """Tables 16, 17 and 19 of the paper; `ripe table` shows the paper's values beside them."""
    about = f"T {document['time_steps']}, {document['precision']}"
    side, batch = document["in_size"], document["batch"]
    attention = document["attention"]
    names = ("parameters", "forward_ms", "backward_ms", "activation_mib")
    rows: list[list[Cell]] = [
        [row["kind"], str(row["widths"]), str(row["batch"]), *(row[name] for name in names)]
        for row in (*attention["rows"], *attention["widths"])
    ]
    full, none = (attention["steps"][kind]["median_ms"] for kind in ("ds-mpa", "none"))
    share = 100 * (1 - none / full)
    notes = [
        document["summary"],
        f"A training step takes {full:.2f} ms with DS-MPA and {none:.2f} ms without ({share:.1f} % of it).",
        "DS-MPA over gate: " + ", ".join(f"{one['over_gate']:.2f} at B {one['batch']}" for one in attention["ratios"]),
    ]
    columns: Sequence[str] = (
        "operator",
        "widths",
        "B",
        "parameters",
        "forward ms",
        "with backward ms",
        "activations MiB",
    )
    first = Table(f"Attention alone, {side}×{side}, {about}", columns, rows, 3, notes)
    rows = [
        [row["path"], row["weights_mib"], row["batch_1"]["median_ms"], *(row["batch_8"][name] for name in TIMES[:1])]
        + [row["batch_8"][name] for name in ("peak_mib", "activation_mib")]
        for row in document["deployment"]
    ]
    columns = ("network", "weights MiB", "B 1 ms", "B 8 ms", "B 8 peak MiB", "B 8 activations MiB")
    second = Table(f"Deployment, {side}×{side}, {about}", columns, rows, 1, [])
    rows = [
        [
            f"{row['side']}×{row['side']}",
            row["training"]["samples_per_second"],
            row["inference"]["samples_per_second"],
            row["training"]["peak_mib"] / 1024,
        ]
        for row in document["resolution"]
    ]
    columns = ("input", "training clips/s", "inference clips/s", "peak GiB of training")
    return [first, second, Table(f"Resolution, batch {batch}, {about}", columns, rows, 1, [])]
