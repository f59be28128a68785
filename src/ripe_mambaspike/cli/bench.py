"""`ripe bench`: speed and memory beside the reference path, after checking that the results agree."""

from dataclasses import make_dataclass
from importlib import import_module
from typing import Any

from ripe_mambaspike.bench.options import (
    BenchOptions,
    InferOptions,
    OperatorOptions,
    PaperCostOptions,
    ScanOptions,
    TrainOptions,
)
from ripe_mambaspike.cli.output import console, format_number, print_json, print_table
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Json


def _command(options: type[BenchOptions], module: str, function: str) -> type:
    """A command with these options and --json, which runs a function of `ripe_mambaspike.bench`."""

    def run(self: Any) -> int:
        """1 when a result did not agree with the reference's, 0 otherwise."""
        from ripe_mambaspike.bench.tables import agrees

        measure = getattr(import_module(f"ripe_mambaspike.bench.{module}"), function)
        with progress_bar() as update:
            document = measure(self, update)
        print_json(document) if self.json else _print_tables(document)
        return 0 if agrees(document) else 1

    more = {"run": run, "__doc__": options.__doc__}
    return make_dataclass(f"{options.__name__}Command", [("json", Json, False)], bases=(options,), namespace=more)


BENCH_COMMANDS = {
    "infer": _command(InferOptions, "infer", "bench_infer"),
    "train": _command(TrainOptions, "train", "bench_train"),
    "ops": _command(OperatorOptions, "ops", "bench_ops"),
    "paper": _command(PaperCostOptions, "paper_costs", "bench_paper"),
    "scan": _command(ScanOptions, "sweep", "bench_scan"),
}


def _print_tables(document: dict[str, Any]) -> None:
    from ripe_mambaspike.bench.tables import machine_line, tables_of

    out = console()
    out.print(f"{machine_line(document['machine'])}\n")
    for table in tables_of(document):
        rows = [[cell if isinstance(cell, str) else format_number(cell) for cell in row] for row in table.rows]
        print_table(out, table.title, table.columns, rows, left=table.labels)
        out.print("\n".join(table.notes) + "\n", markup=False)
