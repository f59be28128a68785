"""`ripe bench`: how fast and in how much memory, beside the reference path, after checking that the results agree."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from ripe_mambaspike.cli.bench_tables import show_infer, show_ops, show_scan, show_train
from ripe_mambaspike.cli.output import print_json, progress, progress_done

Count = Annotated[int | None, tyro.conf.arg(metavar="N")]
Counts = Annotated[list[int], tyro.conf.arg(metavar="N")]
Device = Literal["cpu", "cuda"] | None
Precision = Literal["float32", "bfloat16", "both"]
REPEATS = {"cpu": 5, "cuda": 50}


@dataclass
class InferCommand:
    """Time the deployed network: ours, the plain-PyTorch reference path, and Mamba-Spike."""

    model: Annotated[str, tyro.conf.arg(metavar="MODEL")] = "dvsgesture"
    """A registered RIPE-MambaSpike (see ripe models)."""
    batches: Counts = field(default_factory=list)
    """Batch sizes; 1 on the CPU and 1 8 64 on CUDA when not given."""
    precision: Precision = "both"
    """What products are computed in."""
    steps: Count = None
    """Time steps; the network's own when not given."""
    side: Count = None
    """Side of the square input; the network's own when not given."""
    baseline: Annotated[str, tyro.conf.arg(metavar="MODEL")] = "mamba-spike"
    """The Mamba-Spike to put beside it; none to leave it out."""
    repeats: Count = None
    """Calls that are timed; 5 on the CPU and 50 on CUDA when not given."""
    device: Device = None
    """cpu or cuda; CUDA where there is one when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.bench.infer import Setting, bench_infer
        from ripe_mambaspike.bench.machine import choose_device

        device = choose_device(self.device)
        batches = self.batches or ([1] if device.type == "cpu" else [1, 8, 64])
        baseline = None if self.baseline == "none" else self.baseline
        sizes = (self.steps, self.side, baseline, _repeats(self.repeats, device))
        setting = Setting(self.model, batches, _precisions(self.precision), *sizes)
        return _finish(bench_infer(setting, device, progress), self.json, show_infer)


@dataclass
class BenchTrain:
    """Time one step of training: ours and the plain-PyTorch reference path."""

    recipe: Literal["dvsgesture", "nmnist", "dailydvs200"] | None = None
    """Whose network, batch and passes; dvsgesture on CUDA and nmnist with batch 16 on the CPU when not given."""
    batch: Count = None
    """Clips; the recipe's own when not given."""
    passes: Literal[1, 2] | None = None
    """The hard pass alone (1) or also the relaxed one (2); the recipe's own when not given."""
    precision: Literal["float32", "bfloat16"] | None = None
    """What products are computed in; float32 on the CPU and bfloat16 on CUDA when not given."""
    steps: Count = None
    """Time steps; the network's own when not given."""
    side: Count = None
    """Side of the square input; the network's own when not given."""
    repeats: Count = None
    """Steps that are timed; 5 on the CPU and 50 on CUDA when not given."""
    device: Device = None
    """cpu or cuda; CUDA where there is one when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.bench.machine import choose_device
        from ripe_mambaspike.bench.train import Setting, bench_train

        device = choose_device(self.device)
        on_cpu = device.type == "cpu"
        recipe = self.recipe or ("nmnist" if on_cpu else "dvsgesture")
        batch = 16 if on_cpu and self.recipe is None and self.batch is None else self.batch
        precision = self.precision or ("float32" if on_cpu else "bfloat16")
        sizes = (self.steps, self.side, _repeats(self.repeats, device))
        setting = Setting(recipe, batch, self.passes, precision, *sizes)
        return _finish(bench_train(setting, device, progress), self.json, show_train)


@dataclass
class OpsCommand:
    """Time every fused operator, forward and with backward, at the DVS-Gesture network's sizes."""

    batch: Count = None
    """Clips; 1 on the CPU and 32 on CUDA when not given."""
    steps: Annotated[int, tyro.conf.arg(metavar="N")] = 16
    """Time steps."""
    side: Annotated[int, tyro.conf.arg(metavar="N")] = 128
    """Side of the square input that the sizes come from."""
    precision: Precision | None = None
    """What the activations are kept in; float32 on the CPU and both on CUDA when not given."""
    only: Annotated[list[str], tyro.conf.arg(metavar="NAME")] = field(default_factory=list)
    """Only these operators."""
    repeats: Count = None
    """Calls that are timed; 5 on the CPU and 50 on CUDA when not given."""
    device: Device = None
    """cpu or cuda; CUDA where there is one when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.bench.machine import choose_device
        from ripe_mambaspike.bench.ops import Setting, bench_ops

        device = choose_device(self.device)
        on_cpu = device.type == "cpu"
        batch = self.batch if self.batch is not None else 1 if on_cpu else 32
        precisions = _precisions(self.precision or ("float32" if on_cpu else "both"))
        setting = Setting(batch, self.steps, self.side, precisions, self.only, _repeats(self.repeats, device))
        return _finish(bench_ops(setting, device, progress), self.json, show_ops)


@dataclass
class ScanCommand:
    """Sweep the deployed network over resolution and steps, fit a line to its time, and time the scan alone."""

    model: Annotated[str, tyro.conf.arg(metavar="MODEL")] = "dvsgesture"
    """A registered RIPE-MambaSpike (see ripe models)."""
    batch: Count = None
    """Clips; 1 on the CPU and 64 on CUDA when not given."""
    precision: Literal["float32", "bfloat16"] | None = None
    """What products are computed in; float32 on the CPU and bfloat16 on CUDA when not given."""
    sides: Counts = field(default_factory=list)
    """Sides of the square input; 34 to 224 when not given."""
    steps: Counts = field(default_factory=list)
    """Time steps; 4 to 32 when not given."""
    lengths: Counts = field(default_factory=list)
    """Tokens of the scan alone; 64 to 16384 when not given."""
    repeats: Count = None
    """Calls that are timed; 5 on the CPU and 50 on CUDA when not given."""
    device: Device = None
    """cpu or cuda; CUDA where there is one when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.bench.machine import choose_device
        from ripe_mambaspike.bench.sweep import LENGTHS, SIDES, STEPS, Setting, bench_scan

        device = choose_device(self.device)
        on_cpu = device.type == "cpu"
        batch = self.batch if self.batch is not None else 1 if on_cpu else 64
        precision = self.precision or ("float32" if on_cpu else "bfloat16")
        swept = (self.sides or SIDES, self.steps or STEPS, self.lengths or LENGTHS)
        setting = Setting(self.model, batch, precision, *swept, _repeats(self.repeats, device))
        return _finish(bench_scan(setting, device, progress), self.json, show_scan)


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


def _precisions(asked: str) -> tuple[str, ...]:
    return ("float32", "bfloat16") if asked == "both" else (asked,)


def _repeats(asked: int | None, device: Any) -> int:
    return REPEATS[device.type] if asked is None else asked


def _finish(document: dict[str, Any], json: bool, show: Callable[[dict[str, Any]], None]) -> int:
    """Print; 1 when a result did not agree with the reference's, 0 otherwise."""
    progress_done()
    print_json(document) if json else show(document)
    return 0 if _agrees(document) else 1


def _agrees(part: Any) -> bool:
    """Whether nothing anywhere in the document was found to disagree."""
    if isinstance(part, dict):
        return part.get("agrees", True) and all(map(_agrees, part.values()))
    return all(map(_agrees, part)) if isinstance(part, list) else True
