"""What `ripe export` prints for people."""

from typing import Any

from rich.markup import escape

from ripe_mambaspike.cli.output import console, print_table

COLUMNS = (
    "", "largest difference", "median", "beyond 1e-4", "same label", "load, s", "first answer, s", "a clip, ms",
    "PyTorch, ms",
)  # fmt: skip


def show_export(document: dict[str, Any]) -> None:
    out = console()
    sizes = ", ".join(f"{name} {size:,}" for name, size in document["files"].items())
    out.print(f"{document['to']}, {document['weights']} weights; bytes: {escape(sizes)}", soft_wrap=True)
    if said := document.get("calibration"):
        out.print(
            f"calibrated on {escape(said['on'])}; the layer that moved most is {said['worst_layer']}, by "
            f"{100 * said['worst_error']:.2f} % of its output",
            soft_wrap=True,
        )
    if said := document.get("accuracy"):
        out.print(
            f"top-1 on {said['n']} test recordings: {100 * said['fp32_top1']:.2f} % with fp32 weights, "
            f"[bold]{100 * said['top1']:.2f} %[/] with {document['weights']} ({said['points']:+.2f} points), "
            f"{said['agreeing']} labels the same",
            soft_wrap=True,
        )
    if "accuracy_unknown" in document:
        out.print(f"what that changes was not measured: {escape(document['accuracy_unknown'])}", soft_wrap=True)
    if said := document.get("check"):
        _show_front(said) if document["to"] == "nir" else _show_check(said)
    for sentence in document.get("not_expressed", ()):
        out.print(f"· {escape(sentence)}", soft_wrap=True)
    out.print(f"[bold]{escape(document['folder'])}[/]", soft_wrap=True)


def _show_check(said: dict[str, Any]) -> None:
    rows = [
        (
            how,
            f"{one['difference']:.1e}",
            f"{one['median']:.1e}",
            str(one["beyond"]),
            f"{one['labels']} of {one['clips']}",
            f"{one['load_seconds']:.2f}",
            f"{one['first_seconds']:.2f}",
            f"{one['latency_ms']:.2f}",
            f"{one['torch_ms']:.2f}",
        )
        for how, one in said["ways"].items()
    ]
    print_table(console(), f"beside PyTorch on {escape(said['on'])}", COLUMNS, rows)


def _show_front(said: dict[str, Any]) -> None:
    one = said["ways"]["front-end"]
    console().print(
        f"beside PyTorch on {escape(said['on'])}: {one['differing']} of {one['spikes']:,} spikes differ with what the "
        f"file carries; the nodes alone get {100 * one['by_graph_alone']:.1f} % of all places right",
        soft_wrap=True,
    )
