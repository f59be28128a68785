"""The inputs of the attention's kernels, and how their work is split into programs.

The split depends on the sizes alone, so that runs are reproducible.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.triton_launch import ceil_div, next_power_of_2

# The most channels that one program holds as whole [C, C] matrices. Wider products use cuBLAS, which in float32 (no
# tensor cores) is faster at smaller widths.
FUSED_CHANNELS = {torch.float32: 64, torch.bfloat16: 128}
# The same for the gradient's kernels. In bfloat16 wider ones use cuBLAS: compiled to Hopper's asynchronous products
# they gave wrong sums (Triton 3.6). Narrower tiles do not use those.
GRADIENT_CHANNELS = {torch.float32: 64, torch.bfloat16: 32}
FLOAT32_PRODUCTS = "ieee"  # or "tf32x3", which uses tensor cores; tf32 alone is too coarse
PROGRAMS = 384  # about three for every multiprocessor of a large GPU
MAX_PARTIALS = 16  # partial sums per step
SLICE_BYTES = 512 * 2**20  # limit for the temporaries of one slice of the batch


class AttentionInputs(NamedTuple):
    """One call: tensors [B, T, P, C], the weights of DS-MPA, and the affine norm of the features.

    A step attends to the spikes of the step before it. Without a state the first step has none, and its attention is
    zero: of B·T steps, the B·(T − 1) later ones have a mixture (`triton_mix`). With a state all of them have one.
    """

    potential: Tensor
    spikes: Tensor  # of every step; with `shifted`, of the step before every step
    features: Tensor
    scale: Tensor | None  # [T, C], or [B, T, C]
    shift: Tensor | None
    query: Tensor  # [C, C]
    key: Tensor
    value: Tensor
    gain: Tensor  # γ [C]
    shifted: bool = False

    @property
    def pairs(self) -> int:
        """Samples times steps."""
        return self.potential.shape[0] * self.potential.shape[1]

    @property
    def mixtures(self) -> int:
        """The steps among them that have spikes before them."""
        return self.pairs if self.shifted else self.pairs - self.potential.shape[0]

    def affine(self, part: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """(scale, shift) of some samples for a kernel, which does not read them without a norm."""
        if self.scale is None or self.shift is None:
            return self.gain, self.gain
        per_sample = self.scale.dim() == 3
        return (self.scale[part], self.shift[part]) if per_sample else (self.scale, self.shift)

    def modes(self) -> dict[str, Any]:
        """The compile-time branches of the kernels that read the norm and the mixtures."""
        affine = self.scale is not None and self.shift is not None
        per_sample = affine and self.scale is not None and self.scale.dim() == 3
        return {"AFFINE": affine, "PER_SAMPLE": per_sample, "SHIFTED": self.shifted}


class TilePlan(NamedTuple):
    """A step's positions split into `chunks` programs of `span` blocks of `block` positions each."""

    block: int
    chunks: int
    span: int
    width: int  # channels rounded up to what a program can hold
    warps: int
    stages: int

    def sizes(self, channels: int) -> dict[str, Any]:
        """The sizes of a kernel over chunks of positions."""
        return {"C": channels, "WIDTH": self.width, "BLOCK": self.block, "SPAN": self.span, "num_warps": self.warps}


def fused(x: Tensor) -> bool:
    """Whether x [B, T, P, C] is narrow enough for the kernels in which one program holds all channels."""
    return x.shape[-1] <= FUSED_CHANNELS[x.dtype]


def fused_gradient(x: Tensor) -> bool:
    """The same for the gradient's kernels."""
    return x.shape[-1] <= GRADIENT_CHANNELS[x.dtype]


def plan_tiles(pairs: int, x: Tensor, least: int = 16, most: int = 1 << 30, tile: int = 4096) -> TilePlan:
    """For `pairs` steps of x [B, T, P, C]: at most `most` chunks, blocks of `least` positions or more.

    `tile` limits the elements of a bfloat16 block, C·positions; float32 products take more registers.
    """
    positions, channels = x.shape[2:]
    width = padded(channels)
    largest = tile // width // (1 if x.dtype == torch.bfloat16 else 2 if width <= 32 else 4)
    block = max(least, min(largest, 128, padded(positions)))
    while block > least and pairs * ceil_div(positions, block) < PROGRAMS:
        block //= 2
    blocks = ceil_div(positions, block)
    chunks = min(blocks, most, ceil_div(PROGRAMS, max(pairs, 1)))
    span = ceil_div(blocks, chunks)
    if x.dtype == torch.bfloat16:
        warps, stages = (8, 3) if width > 64 else (4, 3 if width > 32 else 2)
    else:
        warps, stages = 8 if width * block >= 1024 else 4, 1 if width > 64 else 2
    return TilePlan(block, ceil_div(blocks, span), span, width, warps, stages)


def plan_rows(pairs: int, x: Tensor) -> TilePlan:
    """The same for kernels without a matrix product: few whole rows at a time."""
    positions, channels = x.shape[-2:]
    width = padded(channels)
    block = max(1, 4096 // width)
    blocks = ceil_div(positions, block)
    span = ceil_div(blocks, min(blocks, ceil_div(4 * PROGRAMS, max(pairs, 1))))
    return TilePlan(block, ceil_div(blocks, span), span, width, 4, 2)


def padded(size: int) -> int:
    """The next power of two, at least the smallest side of a matrix product."""
    return max(16, next_power_of_2(size))


def slices(x: Tensor, buffers: int, matrices: int) -> list[slice]:
    """Slices of x's batch whose temporaries, `buffers` like x and `matrices` [C, C] per step, fit SLICE_BYTES."""
    batch, steps, positions, channels = x.shape
    one = steps * channels * (positions * buffers * x.element_size() + channels * matrices * 4)
    size = max(1, SLICE_BYTES // max(one, 1))
    return [slice(start, min(start + size, batch)) for start in range(0, batch, size)]
