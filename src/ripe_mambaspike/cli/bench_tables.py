"""What `ripe bench` shows people: one table a command; no speed-up beside a result that does not agree."""

from typing import Any

from rich.console import Console

from ripe_mambaspike.cli.output import console, number, print_table

Row = dict[str, Any]


def show_infer(document: Row) -> None:
    out = console()
    machine = document["machine"]
    _show_machine(out, machine)
    rates = ", ".join(f"{number(r / 1e9)} GFLOP/s in {p}" for p, r in machine["matrix_flops_per_second"].items())
    out.print(f"measured: products {rates}; memory {number(machine['memory_bytes_per_second'] / 1e9)} GB/s\n")
    height, width = document["resolution"]
    title = f"{document['model']}, deployed, T {document['steps']}, {height}×{width}"
    columns = ["network", "batch", "median ms", "p95 ms", "samples/s", "peak MiB", "own MiB"]
    columns += ["of matrix rate", "of memory rate", "× its FLOPs"]
    for precision in dict.fromkeys(row["precision"] for row in document["rows"]):
        rows: list[list[str]] = []
        for row in document["rows"]:
            if row["precision"] == precision:
                rows += [_infer_cells(name, row["batch"], row[name]) for name in _paths(row)]
        print_table(out, f"{title}, {precision}", columns, rows)
        for row in document["rows"]:
            if row["precision"] == precision:
                out.print(f"batch {row['batch']}: {_verdict(row)}")
        out.print()
    out.print(
        "· own: beyond weights and input. Of memory rate: of the least bytes that must move, events, what follows"
    )
    out.print(
        "  each convolution, tokens and logits, each once. × its FLOPs: time over that of its products at that rate"
    )


def _infer_cells(name: str, batch: int, cell: Row) -> list[str]:
    if "error" in cell:
        return [name, str(batch), "–", "–", "–", "–", "–", "–", "–", "–"]
    share = "–" if cell["memory_share"] is None else f"{100 * cell['memory_share']:.1f} %"
    return [
        name,
        str(batch),
        *(number(cell[key]) for key in ("median_ms", "p95_ms", "samples_per_second", "peak_mib", "activation_mib")),
        f"{100 * cell['matrix_share']:.1f} %",
        share,
        f"{cell['times_its_flops']:.2f}",
    ]


def show_train(document: Row) -> None:
    out = console()
    _show_machine(out, document["machine"])
    height, width = document["resolution"]
    passes = "one pass" if document["passes"] == 1 else "both passes"
    title = f"One training step, {document['recipe']}, batch {document['batch']}, {passes}, T {document['steps']}, "
    columns = ("path", "median ms", "p95 ms", "samples/s", "peak MiB", "beyond weights MiB")
    keys = ("median_ms", "p95_ms", "samples_per_second", "peak_mib", "activation_mib")
    rows = [[name, *(number(document[name].get(key)) for key in keys)] for name in _paths(document)]
    print_table(out, f"{title}{height}×{width}, {document['precision']}", columns, rows)
    out.print(_verdict(document))


def show_ops(document: Row) -> None:
    out = console()
    _show_machine(out, document["machine"])
    sizes = f"batch {document['batch']}, T {document['steps']}, {document['side']}×{document['side']}"
    for precision in dict.fromkeys(row["precision"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["precision"] == precision]
        _show_operators(out, f"Operators, {sizes}, {precision}", rows)


def _show_operators(out: Console, title: str, rows: list[Row]) -> None:
    columns = ("operator", "", "ours ms", "p95", "reference ms", "p95", "speed-up", "ours MiB", "reference MiB")
    cells, remarks = [], []
    for row in rows:
        name = f"{row['operator']}, {row['setting']}"
        if "unavailable" in row:
            remarks.append(f"{name}: not measured, {row['unavailable']}")
            continue
        if not row["agreement"]["agrees"]:
            remarks.append(f"{name}: [red]{row['says']}[/]; no speed-up is given")
        for part in ("forward", "backward"):
            if part in row:
                ours, theirs = row[part]["ours"], row[part]["reference"]
                times = (number(one.get(key)) for one in (ours, theirs) for key in ("median_ms", "p95_ms"))
                memory = (number(one.get("activation_mib")) for one in (ours, theirs))
                label = "forward" if part == "forward" else "+ backward"
                cells.append([name, label, *times, _times(row[part]["speedup"]), *memory])
    print_table(out, title, columns, cells, left=2)
    for remark in remarks:
        out.print(f"· {remark}")


def show_scan(document: Row) -> None:
    out = console()
    _show_machine(out, document["machine"])
    title = f"{document['model']}, deployed, batch {document['batch']}, {document['precision']}"
    out.print(f"{document['says']}\n")
    for name in ("resolution", "steps"):
        swept = document[name]
        rows = [
            [f"{row['side']}²", *(number(row[key]) for key in ("steps", "pixels_times_steps", "median_ms", "p95_ms"))]
            for row in swept["rows"]
        ]
        print_table(out, f"{title}, over {name}", ("side", "T", "pixels·T", "median ms", "p95 ms"), rows)
        mark = "" if swept["r2"] >= document["wanted_r2"] else f", less than the {document['wanted_r2']} wanted"
        line = f"{number(swept['intercept_ms'])} ms + {number(swept['ms_per_million'])} ms a million pixels·T"
        out.print(f"least squares: {line}, R² {swept['r2']:.4f}{mark}\n")
    _show_operators(out, f"The scan alone, width {document['scan']['width']}", document["scan"]["rows"])


def _paths(row: Row) -> list[str]:
    return [name for name, cell in row.items() if isinstance(cell, dict) and ("median_ms" in cell or "error" in cell)]


def _verdict(row: Row) -> str:
    """Agreement first, then how much faster, and why a path was not measured."""
    failed = "".join(f"; {row[name]['error']}" for name in _paths(row) if "error" in row[name])
    if not row["agreement"]["agrees"]:
        return f"[red]{row['says']}[/]; no speed-up is given{failed}"
    gain = "" if row["speedup"] is None else f"; {_times(row['speedup'])} the reference path's speed"
    return f"{row['says']}{gain}{failed}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ×"


def _show_machine(out: Console, machine: Row) -> None:
    commit = "" if machine["commit"] is None else f", commit {machine['commit'][:12]}"
    threads = f", {machine['threads']} threads" if machine["device"] == "cpu" else ""
    out.print(f"{machine['name']}{threads}, torch {machine['torch']}{commit}, {machine['date']}")
