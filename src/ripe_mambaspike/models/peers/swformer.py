"""SWformer: Fang, Wang, Zhang, Cao, Chen & Xu, "Spiking Wavelet Transformer", ECCV 2024.

Attention is replaced by a mixer that works on spatial frequencies. A block is x + mixer(x), then x + MLP(x), on
membrane potentials. The mixer (FATM) fires and sums three branches, each with its batch norm:

    wavelets    Haar transform of rows and columns, fire, a product with W, and the transform back
    local       a 3×3 convolution
    pointwise   a 1×1 convolution

    D      width of the tokens, 256
    L      number of blocks, 2
    groups channels are mixed inside groups of D / groups: W is block-diagonal, the convolutions are the same for all
    H      Haar matrix, orthonormal: X → H X Hᵀ and back by Hᵀ X H
    s      spikes; between the two sides of a transform they have signs, +1 from 1 up and −1 from −0.501 down

Published for CIFAR10-DVS: 2.05 M parameters, 82.90 % at T = 10. This network has 2,056,266.

What the paper leaves open, and what was decided here: the number of groups, 16, is the one that gives the printed
count (4 would give 2.16 M, 8 give 2.08 M). The thresholds of signed spikes, their reset to zero and their gradient are
those of the authors' release. That release's file for event data chains the convolutions behind the wavelets, with
3×3 max-pools around them, while the paper and its file for images have three parallel branches: these are built here.
Haar matrices need sides that are powers of two; here any side works: where a level has an odd number of cells, the last
one waits for the next level, and the cells of a pair are weighted by their widths.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.peers.layers import (
    ConvNorm,
    MembraneMlp,
    MembranePatchSplitting,
    SpikeMatmul,
    per_step,
    sigmoid_neuron,
)
from ripe_mambaspike.models.registry import register_model
from ripe_mambaspike.nn.plain_norm import PlainBatchNorm
from ripe_mambaspike.nn.spike_log import log_spikes
from ripe_mambaspike.ops.shapes import at_least_float32, sum_dtype
from ripe_mambaspike.ops.spikes import fire_as

THRESHOLD, NEGATIVE_THRESHOLD = 1.0, -0.501
SHARPNESS = 4.0  # of the sigmoid surrogate


@dataclass(frozen=True)
class SwformerConfig(PeerConfig):
    architecture: ClassVar[str] = "swformer"

    num_classes: int = 10
    time_steps: int = 10
    embed_dim: int = 256  # D, a multiple of 8 and of groups
    depth: int = 2  # L
    mlp_ratio: int = 4
    groups: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_count("embed_dim", "depth", "mlp_ratio", "groups")
        if self.embed_dim % 8 or self.embed_dim % self.groups:
            self._refuse("embed_dim", f"a multiple of 8 and of {self.groups}, the groups")


def haar_matrix(size: int, like: Tensor) -> Tensor:
    """The orthonormal Haar matrix [size, size], the mean first and then differences from coarse to fine."""
    cells = torch.eye(size, dtype=sum_dtype(like), device=like.device)  # indicators of cells, joined in pairs
    rows: list[Tensor] = []
    while len(cells) > 1:
        paired = len(cells) // 2 * 2
        left, right = cells[0:paired:2], cells[1:paired:2]
        rows.insert(0, left / left.sum(1, keepdim=True) - right / right.sum(1, keepdim=True))
        cells = torch.cat((left + right, cells[paired:]))
    matrix = torch.cat((cells, *rows))
    return (matrix / torch.linalg.vector_norm(matrix, dim=1, keepdim=True)).to(like.dtype)


def signed_fire(x: Tensor) -> Tensor:
    """x [B, T, ...] → spikes −1, 0 or 1 of a neuron that does not leak and is reset to zero by either."""
    membrane = torch.zeros_like(x[:, 0], dtype=sum_dtype(x))
    spikes = []
    for x_t in x.unbind(1):
        potential = membrane + at_least_float32(x_t)
        if torch.compiler.is_exporting():  # compared directly: a runtime may flush a tiny difference to zero
            spike = (potential >= THRESHOLD).to(potential.dtype) - (potential <= NEGATIVE_THRESHOLD).to(potential.dtype)
        else:
            up = fire_as("sigmoid", potential - THRESHOLD, SHARPNESS)
            spike = up - fire_as("sigmoid", NEGATIVE_THRESHOLD - potential, SHARPNESS)
        membrane = potential * (1 - spike.abs())
        spikes.append(spike)
    return torch.stack(spikes, 1).to(x.dtype)


class SwformerSignedNeuron(nn.Module):
    """x [B, T, ...] → signed spikes; its firing rate counts both signs."""

    def forward(self, x: Tensor) -> Tensor:
        spikes = signed_fire(x)
        log_spikes(self, spikes.abs())
        return spikes


class SwformerWavelets(nn.Module):
    """The branch of spatial frequencies: spikes [B, T, D, h, w] → [B, T, D, h, w]."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.rows, self.columns = SpikeMatmul(), SpikeMatmul()
        self.rows_back, self.columns_back = SpikeMatmul(), SpikeMatmul()
        self.column_neuron, self.back_neuron, self.column_back_neuron = (SwformerSignedNeuron() for _ in range(3))
        self.norm, self.back_norm = PlainBatchNorm(width), PlainBatchNorm(width)
        self.neuron = sigmoid_neuron()
        self.mix = ConvNorm(width, width, 1, groups=groups)  # W, the same for all frequencies

    def forward(self, spikes: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
        x = self.column_neuron(self.rows(spikes, horizontal.T))
        x = self.neuron(per_step(self.norm, self.columns(vertical, x)))[0]
        x = self.rows_back(self.back_neuron(self.mix(x)), horizontal)
        return per_step(self.back_norm, self.columns_back(vertical.T, self.column_back_neuron(x)))


class SwformerGroupConv(nn.Module):
    """A convolution with the same kernel for every group of channels, and a batch norm: [B, T, D, h, w] as is."""

    def __init__(self, width: int, groups: int, kernel: int) -> None:
        super().__init__()
        each = width // groups
        self.conv = nn.Conv2d(each, each, kernel, padding=kernel // 2)
        self.norm = PlainBatchNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        groups = x.reshape(-1, self.conv.in_channels, *x.shape[3:])  # [B · T · groups, D / groups, h, w]
        return per_step(self.norm, self.conv(groups).reshape(x.shape))


class SwformerBlock(nn.Module):
    """Potentials [B, T, D, h, w] and both Haar matrices → potentials."""

    def __init__(self, config: SwformerConfig) -> None:
        super().__init__()
        width, groups = config.embed_dim, config.groups
        self.neuron = sigmoid_neuron()
        self.wavelets = SwformerWavelets(width, groups)
        self.local = SwformerGroupConv(width, groups, 3)
        self.pointwise = SwformerGroupConv(width, groups, 1)
        self.mlp = MembraneMlp(width, config.mlp_ratio)

    def forward(self, x: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
        spikes = self.neuron(x)[0]
        x = x + self.wavelets(spikes, vertical, horizontal) + self.local(spikes) + self.pointwise(spikes)
        return x + self.mlp(x)


class SwformerBlocks(nn.ModuleList):
    """All blocks, with the Haar matrices of their grid: potentials [B, T, D, h, w] → potentials."""

    def forward(self, x: Tensor) -> Tensor:
        vertical, horizontal = (haar_matrix(side, x) for side in x.shape[3:])
        for block in self:
            x = block(x, vertical, horizontal)
        return x


@register_architecture(SwformerConfig)
class Swformer(PeerModel[SwformerConfig]):
    def __init__(self, config: SwformerConfig, name: str) -> None:
        super().__init__(config, name)
        self.patches = MembranePatchSplitting(config.embed_dim)
        self.blocks = SwformerBlocks(SwformerBlock(config) for _ in range(config.depth))
        self.add_head(config.embed_dim)

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → [B, T, D]."""
        return self.blocks(self.patches(x)).mean((3, 4))

    def num_spiking_layers(self) -> int:
        signed = sum(isinstance(module, SwformerSignedNeuron) for module in self.modules())
        return super().num_spiking_layers() + signed


@register_model("swformer")
def swformer() -> ModelConfig:
    return SwformerConfig()
