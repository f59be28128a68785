"""The options of every benchmark, as dataclasses: a program fills them in, `ripe bench` reads them from its arguments.

The text under a field is its line of `--help`. None takes the default of the device or of the network.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ripe_mambaspike.command_options import Count, Counts, Number, option

ModelName = Annotated[str, option("MODEL")]
ModelNames = Annotated[list[str], option("MODEL")]
Precision = Literal["float32", "bfloat16"]
OptionalPrecision = Annotated[Precision | None, option("{float32,bfloat16}")]
BothPrecisions = Literal["float32", "bfloat16", "both"]
WithReference = Annotated[bool, option(text="Do not time the reference path; results are still compared with it.")]


@dataclass
class BenchOptions:
    """What every benchmark takes."""

    repeats: Count = None
    """Calls that are timed. Default: 5 on the CPU and 50 on CUDA."""
    device: Annotated[Literal["cpu", "cuda"] | None, option("{cpu,cuda}")] = None
    """cpu or cuda. Default: CUDA where there is one."""


@dataclass
class InferOptions(BenchOptions):
    """Time the deployed network: our kernels, the plain-PyTorch reference path, and Mamba-Spike.

    With --models, any networks beside each other, on clips of one size.
    """

    model: ModelName = "dvsgesture"
    """A registered RIPE-MambaSpike (see ripe models)."""
    models: ModelNames = field(default_factory=list)
    """Time these networks instead (see ripe models), called as they are and captured."""
    batches: Counts = field(default_factory=list)
    """Batch sizes. Default: 1 on the CPU and 1 8 64 on CUDA."""
    precision: BothPrecisions = "both"
    """Precision of the products."""
    time_steps: Count = None
    """Time steps of a clip. Default: the network's own, with --models the first one's."""
    in_size: Count = None
    """Side of the square input. Default: the network's own, with --models the first one's."""
    baseline: ModelName = "mamba-spike"
    """The Mamba-Spike to compare with; none to leave it out."""
    reference: WithReference = True


@dataclass
class TrainOptions(BenchOptions):
    """Time one training step: our kernels and the plain-PyTorch reference path.

    With --models, a step of any networks beside each other, on clips of one size.
    """

    models: ModelNames = field(default_factory=list)
    """Time a step of these networks instead (see ripe models), called as it is and, on CUDA, captured."""
    recipe: Annotated[
        Literal["dvsgesture", "nmnist", "dailydvs200"] | None, option("{dvsgesture,nmnist,dailydvs200}")
    ] = None
    """Sets network, batch and passes. Default: dvsgesture on CUDA and nmnist with batch 16 on the CPU."""
    batch: Count = None
    """Clips of a batch. Default: the recipe's."""
    passes: Annotated[Literal[1, 2] | None, option("{1,2}")] = None
    """The hard pass alone (1), or the relaxed pass too (2). Default: the recipe's, or 1 for a network without a
    relaxed pass."""
    precision: OptionalPrecision = None
    """Precision of the products. Default: float32 on the CPU and bfloat16 on CUDA."""
    time_steps: Count = None
    """Time steps of a clip. Default: those of the recipe's network."""
    in_size: Count = None
    """Side of the square input. Default: that of the recipe's network."""
    reference: WithReference = True


@dataclass
class OperatorOptions(BenchOptions):
    """Time every fused operator, forward and with backward, at the sizes of the DVS-Gesture network."""

    batch: Count = None
    """Clips of a batch. Default: 1 on the CPU and 32 on CUDA."""
    time_steps: Number = 16
    """Time steps of a clip."""
    in_size: Number = 128
    """Side of the square input from which the operators' sizes follow."""
    precision: Annotated[BothPrecisions | None, option("{float32,bfloat16,both}")] = None
    """Precision of the activations. Default: float32 on the CPU and both on CUDA."""
    only: Annotated[list[str], option("NAME")] = field(default_factory=list)
    """Only these operators."""


@dataclass
class ScanOptions(BenchOptions):
    """Time the deployed network over input sizes and time steps, fit a line, and time the selective scan alone."""

    model: ModelName = "dvsgesture"
    """A registered RIPE-MambaSpike (see ripe models)."""
    batch: Count = None
    """Clips of a batch. Default: 1 on the CPU and 64 on CUDA."""
    precision: OptionalPrecision = None
    """Precision of the products. Default: float32 on the CPU and bfloat16 on CUDA."""
    in_size: Counts = field(default_factory=lambda: [34, 48, 64, 96, 128, 160, 192, 224])
    """Sides of the square input."""
    time_steps: Counts = field(default_factory=lambda: [4, 8, 12, 16, 20, 24, 32])
    """Time steps of a clip."""
    lengths: Counts = field(default_factory=lambda: [64, 256, 1024, 4096, 16384])
    """Tokens of the scan alone."""


@dataclass
class PaperCostOptions(BenchOptions):
    """Measure what the paper's Tables 16, 17 and 19 measure: DS-MPA alone, latency and memory, cost by resolution.

    Store the JSON in benchmarks/results/DATE-DEVICE-paper.json: ripe table 16, 17 and 19 read it.
    """

    batch: Number = 4
    """Clips of a batch in Tables 16 and 19."""
    precision: Precision = "float32"
    """Precision of the products."""
    time_steps: Number = 16
    """Time steps of a clip."""
    in_size: Number = 128
    """Side of the square input in Tables 16 and 17."""
    in_sizes: Counts = field(default_factory=lambda: [34, 48, 128, 224])
    """Sides of the square input in Table 19."""
