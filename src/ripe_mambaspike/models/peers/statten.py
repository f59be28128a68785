"""STAtten: an attention of spikes over the tokens of several steps at once.

D. Lee, Y. Li, Y. Kim, S. Xiao, P. Panda: "Spiking Transformer with Spatial-Temporal Attention", CVPR 2025. Its
attention in the Spike-driven Transformer (`sdt`), two blocks of 256 channels for event cameras, 2.57 M parameters.

    chunk      consecutive steps that attend to each other, five of ten
    attention  q, k, v = SN(BN(W s)); SN₀.₅(q (kᵀ v) · scale) over all tokens of a chunk; then BN(W s)

kᵀ v of a chunk is the sum of its steps' kᵀ v, so no tokens are moved, and a last chunk may be shorter than the others.
Patches, MLP, shortcuts and head are those of `sdt`. A step's logits depend on later steps of its chunk.

Left open by the paper, and decided here: eight heads, chunks of five, a threshold of 1/2 and the pools after the last
two convolutions for clips of 64×64, as in the authors' release for CIFAR10-DVS and N-Caltech101 with ten steps; and the
scale, here 1/√N for the N tokens of a step, as that release has it for still images. For event data it divides by all
tokens of a chunk instead, and makes up for it with 3×3 max pools of q, k and v and with a gate on the pooled input,
none of which the paper describes: without them, products so small would not reach the threshold.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.layers import ConvNorm, SpikeMatmul, join_heads, sigmoid_neuron, split_qkv
from ripe_mambaspike.models.peers.sdt import SdtConfig, SpikeDrivenTransformer
from ripe_mambaspike.models.registry import register_model

ATTENTION_THRESHOLD = 0.5


@dataclass(frozen=True)
class StattenConfig(SdtConfig):
    architecture: ClassVar[str] = "statten"

    pooled: tuple[int, ...] = (3, 4)
    num_heads: int = 8
    chunk_size: int = 5  # steps whose tokens attend to each other

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_count("num_heads", "chunk_size")
        if self.embed_dim % self.num_heads:
            self._refuse("embed_dim", f"a multiple of 8 and of num_heads {self.num_heads}")


class StattenAttention(nn.Module):
    """The attention on spikes [B, T, C, H, W]; q, k and v are thirds of one convolution, one norm and one neuron."""

    def __init__(self, channels: int, num_heads: int, chunk_size: int) -> None:
        super().__init__()
        self.num_heads, self.chunk_size = num_heads, chunk_size
        self.qkv = ConvNorm(channels, 3 * channels)
        self.qkv_neuron = sigmoid_neuron()
        self.key_value, self.query = SpikeMatmul(), SpikeMatmul()
        self.attention_neuron = sigmoid_neuron(ATTENTION_THRESHOLD)
        self.proj = ConvNorm(channels, channels, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split_qkv(self.qkv_neuron(self.qkv(x))[0], self.num_heads)  # [B, T, heads, N, d]
        scale = 1 / math.sqrt(q.shape[3])
        pairs = sum_in_chunks(self.key_value(k.transpose(3, 4), v), self.chunk_size) * scale
        mixed = join_heads(self.query(q, pairs), x.shape[3:])
        return self.proj(self.attention_neuron(mixed)[0])


def sum_in_chunks(x: Tensor, chunk_size: int) -> Tensor:
    """Every step of [B, T, ...] becomes the sum over the steps of its chunk."""
    return torch.cat([part.sum(1, keepdim=True).expand_as(part) for part in x.split(chunk_size, 1)], 1)


@register_architecture(StattenConfig)
class Statten(SpikeDrivenTransformer):
    config: StattenConfig

    def __init__(self, config: StattenConfig, name: str) -> None:
        super().__init__(config, name, lambda: StattenAttention(config.embed_dim, config.num_heads, config.chunk_size))


@register_model("statten")
def statten() -> ModelConfig:
    return StattenConfig(num_classes=10, time_steps=10, in_size=(64, 64))
