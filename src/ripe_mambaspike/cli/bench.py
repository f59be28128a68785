"""`ripe bench`: speed and memory beside the reference path, after checking that the results agree."""

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, ClassVar

import tyro

from ripe_mambaspike.bench.options import InferOptions, OperatorOptions, ScanOptions, TrainOptions
from ripe_mambaspike.cli.output import console, number, print_json, print_table
from ripe_mambaspike.cli.progress import progress_bar


@dataclass
class _Benchmark:
    """What every command does: measure, and print tables or a JSON document."""

    json: bool = False
    """Print one JSON document."""
    function: ClassVar[str]  # of ripe_mambaspike.bench, imported when it runs

    def run(self) -> int:
        """1 when a result did not agree with the reference's, 0 otherwise."""
        from ripe_mambaspike.bench.tables import agrees

        module, name = self.function.split(".")
        measure = getattr(import_module(f"ripe_mambaspike.bench.{module}"), name)
        with progress_bar() as update:
            document = measure(self, update)
        print_json(document) if self.json else _print_tables(document)
        return 0 if agrees(document) else 1


@dataclass
class InferCommand(_Benchmark, InferOptions):
    __doc__ = InferOptions.__doc__
    function: ClassVar[str] = "infer.bench_infer"


@dataclass
class BenchTrain(_Benchmark, TrainOptions):
    __doc__ = TrainOptions.__doc__
    function: ClassVar[str] = "train.bench_train"


@dataclass
class OpsCommand(_Benchmark, OperatorOptions):
    __doc__ = OperatorOptions.__doc__
    function: ClassVar[str] = "ops.bench_ops"


@dataclass
class ScanCommand(_Benchmark, ScanOptions):
    __doc__ = ScanOptions.__doc__
    function: ClassVar[str] = "sweep.bench_scan"


@dataclass
class BenchCommand:
    """Measure speed and memory, beside the plain-PyTorch reference path and Mamba-Spike."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[InferCommand, tyro.conf.subcommand("infer")]
        | Annotated[BenchTrain, tyro.conf.subcommand("train")]
        | Annotated[OpsCommand, tyro.conf.subcommand("ops")]
        | Annotated[ScanCommand, tyro.conf.subcommand("scan")]
    ]

    def run(self) -> int:
        return self.command.run()


def _print_tables(document: dict[str, Any]) -> None:
    from ripe_mambaspike.bench.tables import machine_line, tables_of

    out = console()
    out.print(f"{machine_line(document['machine'])}\n")
    for table in tables_of(document):
        rows = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in table.rows]
        print_table(out, table.title, table.columns, rows, left=table.labels)
        out.print("\n".join(table.notes) + "\n", markup=False)
