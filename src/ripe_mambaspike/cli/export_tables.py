"""The tables that `ripe export` prints."""

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
    if section := document.get("calibration"):
        out.print(
            f"calibrated on {escape(section['on'])}; the largest change is in layer {section['worst_layer']}, by "
            f"{100 * section['worst_error']:.2f} % of its output",
            soft_wrap=True,
        )
    if section := document.get("accuracy"):
        out.print(
            f"top-1 on {section['n']} test recordings: {100 * section['fp32_top1']:.2f} % with fp32 weights, "
            f"[bold]{100 * section['top1']:.2f} %[/] with {document['weights']} ({section['points']:+.2f} points), "
            f"{section['agreeing']} labels the same",
            soft_wrap=True,
        )
    if "accuracy_unknown" in document:
        out.print(f"accuracy was not measured: {escape(document['accuracy_unknown'])}", soft_wrap=True)
    if section := document.get("check"):
        _show_front(section) if document["to"] == "nir" else _show_check(section)
    for sentence in document.get("not_expressed", ()):
        out.print(f"· {escape(sentence)}", soft_wrap=True)
    out.print(f"[bold]{escape(document['folder'])}[/]", soft_wrap=True)


def _show_check(section: dict[str, Any]) -> None:
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
        for how, one in section["ways"].items()
    ]
    print_table(console(), f"beside PyTorch on {escape(section['on'])}", COLUMNS, rows)


def _show_front(section: dict[str, Any]) -> None:
    one = section["ways"]["front-end"]
    console().print(
        f"beside PyTorch on {escape(section['on'])}: {one['differing']} of {one['spikes']:,} spikes differ with the "
        f"file's extra data; from the nodes alone {100 * one['by_graph_alone']:.1f} % of all spikes are right",
        soft_wrap=True,
    )
