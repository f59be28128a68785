"""`ripe bench`: speed and memory beside the reference path, after checking that the results agree."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from ripe_mambaspike.bench.options import InferOptions, OperatorOptions, ScanOptions, TrainOptions
from ripe_mambaspike.cli.output import console, number, print_json, print_table
from ripe_mambaspike.cli.progress import progress_bar


@dataclass
class InferCommand(InferOptions):
    """Time the deployed network: our kernels, the plain-PyTorch reference path, and Mamba-Spike."""

    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.bench.infer import bench_infer

        return _run(bench_infer, self, self.json)


@dataclass
class BenchTrain(TrainOptions):
    """Time one training step: our kernels and the plain-PyTorch reference path."""

    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.bench.train import bench_train

        return _run(bench_train, self, self.json)


@dataclass
class OpsCommand(OperatorOptions):
    """Time every fused operator, forward and with backward, at the sizes of the DVS-Gesture network."""

    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.bench.ops import bench_ops

        return _run(bench_ops, self, self.json)


@dataclass
class ScanCommand(ScanOptions):
    """Time the deployed network over input sizes and time steps, fit a line, and time the selective scan alone."""

    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.bench.sweep import bench_scan

        return _run(bench_scan, self, self.json)


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


def _run(bench: Callable[..., dict[str, Any]], options: Any, json: bool) -> int:
    """Measure and print; 1 when a result did not agree with the reference's, 0 otherwise."""
    from ripe_mambaspike.bench.tables import agrees, machine_line, tables_of

    with progress_bar() as update:
        document = bench(options, update)
    if json:
        print_json(document)
    else:
        out = console()
        out.print(f"{machine_line(document['machine'])}\n")
        for table in tables_of(document):
            rows = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in table.rows]
            print_table(out, table.title, table.columns, rows, left=table.labels)
            out.print("\n".join(table.notes) + "\n", markup=False)
    return 0 if agrees(document) else 1
