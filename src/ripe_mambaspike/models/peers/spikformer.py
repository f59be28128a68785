"""Spikformer: the first transformer of spikes, whose attention needs no softmax.

Z. Zhou, Y. Zhu, C. He, Y. Wang, S. Yan, Y. Tian, L. Yuan: "Spikformer: When Spiking Neural Network Meets Transformer",
ICLR 2023. The variant for event cameras, Spikformer-2-256: patches of 16×16, 2.57 M parameters.

    SN    a leaky neuron; BN a batch norm
    SPS   spiking patch splitting: four times Conv3×3 – BN – SN – max pool, to C/8, C/4, C/2 and C channels
    RPE   position embedding: SN(BN(Conv3×3(x))), added to the patches
    SSA   spiking self-attention: q, k, v = SN(BN(W x)); SN₀.₅(q kᵀ v · s); then SN(BN(W x))
    MLP   SN(BN(W₂ SN(BN(W₁ x)))), four times as wide inside
    block x ← x + SSA(x); x ← x + MLP(x)

Spikes are added to spikes, so the maps between the blocks hold small integers.

Left open by the paper, and decided here: s = 1/4, sixteen heads, a threshold of 1/2 for the neuron of the attention,
and biases in the MLP and in the last projection, as the authors' release has them for event data (without the biases
the count would be 2.56 M). The product is computed as q (kᵀ v): the same numbers, with fewer additions.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.peers.layers import (
    ConvNorm,
    SpikeAttention,
    channels_last,
    join_heads,
    overlapping_pool,
    per_step,
    sigmoid_neuron,
    split_qkv,
)
from ripe_mambaspike.models.registry import register_model

SCALE = 0.25  # of the attention
ATTENTION_THRESHOLD = 0.5


@dataclass(frozen=True)
class SpikformerConfig(PeerConfig):
    architecture: ClassVar[str] = "spikformer"

    embed_dim: int = 256  # C, channels of a token; a multiple of 8 and of the heads
    depth: int = 2  # blocks
    num_heads: int = 16
    mlp_ratio: int = 4  # width of the MLP in multiples of C

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_count("embed_dim", "depth", "num_heads", "mlp_ratio")
        if self.embed_dim % 8 or self.embed_dim % self.num_heads:
            self._refuse("embed_dim", f"a multiple of 8 and of num_heads {self.num_heads}")


class SpikformerPatches(nn.Module):
    """Events [B, T, 2, H, W] → patches [B, T, C, ⌈H/16⌉, ⌈W/16⌉]: SPS and RPE."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = (2, channels // 8, channels // 4, channels // 2, channels)
        self.convs = nn.ModuleList(ConvNorm(before, after, 3) for before, after in pairwise(widths))
        self.neurons = nn.ModuleList(sigmoid_neuron() for _ in self.convs)
        self.pool = overlapping_pool()
        self.position = ConvNorm(channels, channels, 3)
        self.position_neuron = sigmoid_neuron()

    def forward(self, x: Tensor) -> Tensor:
        for conv, neuron in zip(self.convs, self.neurons, strict=True):
            x = per_step(self.pool, neuron(conv(x))[0])
        return x + self.position_neuron(self.position(x))[0]


class SpikformerAttention(nn.Module):
    """SSA on maps [B, T, C, H, W]; q, k and v are the thirds of one convolution, one norm and one neuron."""

    def __init__(self, channels: int, num_heads: int, scale: float = SCALE) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, scale
        self.qkv = ConvNorm(channels, 3 * channels)
        self.qkv_neuron = sigmoid_neuron()
        self.attention = SpikeAttention()
        self.attention_neuron = sigmoid_neuron(ATTENTION_THRESHOLD)
        self.proj = ConvNorm(channels, channels, bias=True)
        self.proj_neuron = sigmoid_neuron()

    def forward(self, x: Tensor) -> Tensor:
        spikes, _ = self.qkv_neuron(self.qkv(x))
        q, k, v = split_qkv(spikes, self.num_heads)
        mixed = join_heads(self.attention(q, k, v, self.scale), x.shape[3:])
        return self.proj_neuron(self.proj(self.attention_neuron(mixed)[0]))[0]


class SpikformerMlp(nn.Module):
    """Two 1×1 convolutions, each with its norm and neuron, on maps [B, T, C, H, W]."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.expand, self.contract = ConvNorm(channels, hidden, bias=True), ConvNorm(hidden, channels, bias=True)
        self.hidden_neuron, self.neuron = sigmoid_neuron(), sigmoid_neuron()

    def forward(self, x: Tensor) -> Tensor:
        return self.neuron(self.contract(self.hidden_neuron(self.expand(x))[0]))[0]


class SpikformerBlock(nn.Module):
    def __init__(self, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


@register_architecture(SpikformerConfig)
class Spikformer(PeerModel[SpikformerConfig]):
    def __init__(self, config: SpikformerConfig, name: str) -> None:
        super().__init__(config, name)
        width = config.embed_dim
        self.patches = SpikformerPatches(width)
        self.blocks = nn.Sequential(
            *(
                SpikformerBlock(
                    SpikformerAttention(width, config.num_heads), SpikformerMlp(width, config.mlp_ratio * width)
                )
                for _ in range(config.depth)
            )
        )
        self.add_head(width)

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → the mean token of every step [B, T, C]."""
        return self.blocks(self.patches(channels_last(x))).mean((3, 4))


@register_model("spikformer")
def spikformer() -> ModelConfig:
    return SpikformerConfig()
