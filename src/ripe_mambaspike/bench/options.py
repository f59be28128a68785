"""The options of every benchmark, as dataclasses: a program fills them in, `ripe bench` reads them from its arguments.

The text under a field is its line of `--help`. None takes the default of the device or of the network.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

Count = Annotated[int | None, tyro.conf.arg(metavar="N")]
Counts = Annotated[list[int], tyro.conf.arg(metavar="N")]
Number = Annotated[int, tyro.conf.arg(metavar="N")]
ModelName = Annotated[str, tyro.conf.arg(metavar="MODEL")]
Precision = Literal["float32", "bfloat16"]


@dataclass
class BenchOptions:
    """What every benchmark takes."""

    repeats: Count = None
    """Calls that are timed; by default 5 on the CPU and 50 on CUDA."""
    device: Literal["cpu", "cuda"] | None = None
    """cpu or cuda; by default CUDA where there is one."""


@dataclass
class InferOptions(BenchOptions):
    """Time the deployed network: our kernels, the plain-PyTorch reference path, and Mamba-Spike."""

    model: ModelName = "dvsgesture"
    """A registered RIPE-MambaSpike (see ripe models)."""
    batches: Counts = field(default_factory=list)
    """Batch sizes; by default 1 on the CPU and 1 8 64 on CUDA."""
    precision: Literal["float32", "bfloat16", "both"] = "both"
    """Precision of the products."""
    time_steps: Count = None
    """Time steps of a clip; by default the network's own."""
    side: Count = None
    """Side of the square input; by default the network's own."""
    baseline: ModelName = "mamba-spike"
    """The Mamba-Spike to compare with; none to leave it out."""
    reference: bool = True
    """Whether to time the reference path too. The results are compared with its results either way."""


@dataclass
class TrainOptions(BenchOptions):
    """Time one training step: our kernels and the plain-PyTorch reference path."""

    recipe: Literal["dvsgesture", "nmnist", "dailydvs200"] | None = None
    """Sets network, batch and passes; by default dvsgesture on CUDA and nmnist with batch 16 on the CPU."""
    batch: Count = None
    """Clips of a batch; by default the recipe's."""
    passes: Literal[1, 2] | None = None
    """The hard pass alone (1), or the relaxed pass too (2); by default the recipe's."""
    precision: Precision | None = None
    """Precision of the products; by default float32 on the CPU and bfloat16 on CUDA."""
    time_steps: Count = None
    """Time steps of a clip; by default the network's own."""
    side: Count = None
    """Side of the square input; by default the network's own."""
    reference: bool = True
    """Whether to time the reference path too. Loss and gradients are compared with its own either way."""


@dataclass
class OperatorOptions(BenchOptions):
    """Time every fused operator, forward and with backward, at the sizes of the DVS-Gesture network."""

    batch: Count = None
    """Clips of a batch; by default 1 on the CPU and 32 on CUDA."""
    time_steps: Number = 16
    """Time steps of a clip."""
    side: Number = 128
    """Side of the square input from which the operators' sizes follow."""
    precision: Literal["float32", "bfloat16", "both"] | None = None
    """Precision of the activations; by default float32 on the CPU and both on CUDA."""
    only: Annotated[list[str], tyro.conf.arg(metavar="NAME")] = field(default_factory=list)
    """Only these operators."""


@dataclass
class ScanOptions(BenchOptions):
    """Time the deployed network over input sizes and time steps, fit a line, and time the selective scan alone."""

    model: ModelName = "dvsgesture"
    """A registered RIPE-MambaSpike (see ripe models)."""
    batch: Count = None
    """Clips of a batch; by default 1 on the CPU and 64 on CUDA."""
    precision: Precision | None = None
    """Precision of the products; by default float32 on the CPU and bfloat16 on CUDA."""
    sides: Counts = field(default_factory=lambda: [34, 48, 64, 96, 128, 160, 192, 224])
    """Sides of the square input."""
    time_steps: Counts = field(default_factory=lambda: [4, 8, 12, 16, 20, 24, 32])
    """Time steps of a clip."""
    lengths: Counts = field(default_factory=lambda: [64, 256, 1024, 4096, 16384])
    """Tokens of the scan alone."""
