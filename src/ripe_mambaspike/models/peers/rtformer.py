"""RTFormer: a spiking transformer with re-parameterized convolutions and batch norms that slide over time.

H. Wang, X. Liang, M. Li, T. Zhang: "RTFormer: Re-parameter TSBN Spiking Transformer", arXiv 2406.14180, 2024.

    embedding        four times: 3×3 convolution, norm, neuron, 3×3 max-pool of stride 2, at widths d/8, d/4, d/2, d;
                     plus a 3×3 convolution, norm and neuron over the result, for positions
    core             spatial: a depthwise 3×3 and a depthwise 1×1, each with a norm, are added, and a pointwise
                     convolution follows; temporal: the sliding norm (TSBN) and a neuron
    attention        q, k, v and the projection of q (kᵀ v) are cores; spikes of the sum before the projection
    block            x + attention(x), then x + MLP(x); the MLP is two pointwise convolutions with norm and neuron
    TSBN             a batch norm of step t with statistics of the steps t − w + 1 … t; in evaluation one running
                     mean and variance, so that it can be folded into weights or thresholds
    head             mean over tokens and steps, Linear

Table 1 of the RIPE-MambaSpike paper attributes no parameter count to RTFormer, so there is none to reach.

Missing facts, decided here: the width, depth and heads for event data, and what surrounds the cores (those of
Spikformer-2-256: 16 heads, an MLP of 4d, scale 1/4, threshold 1/2 for the attention's sum); the window w (4 steps);
which layers have a spatial core (q, k, v and the projection); whether branches include an identity (no). The two
depthwise branches are kept apart, also in evaluation; merged they would have 4d parameters fewer a core.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.peers.layers import ConvNorm, SpikeMatmul, per_step, sigmoid_neuron
from ripe_mambaspike.models.registry import register_model
from ripe_mambaspike.nn.plain_norm import PlainBatchNorm
from ripe_mambaspike.nn.sync_stats import joint_spread
from ripe_mambaspike.ops.shapes import at_least_float32

SCALE = 0.25
ATTENTION_THRESHOLD = 0.5


@dataclass(frozen=True)
class RtformerConfig(PeerConfig):
    architecture: ClassVar[str] = "rtformer"

    width: int = 256
    depth: int = 2
    num_heads: int = 16
    mlp_ratio: int = 4
    window: int = 4  # steps whose statistics a norm sees

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_count("width", "depth", "num_heads", "mlp_ratio", "window")
        if self.width % 8:
            self._refuse("width", "a multiple of 8")
        if self.width % self.num_heads:
            self._refuse("num_heads", f"a divisor of the width, {self.width}")


def window_moments(mean: Tensor, variance: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Of steps [T, C] → of each step and the `window` − 1 before it, or as many as there are [T, C]."""
    steps = torch.arange(len(mean), device=mean.device)
    age = steps[:, None] - steps
    inside = ((age >= 0) & (age < window)).to(mean.dtype)
    share = (inside / inside.sum(1, keepdim=True)).unsqueeze(2)  # [T, T, 1]
    joint = (share * mean).sum(1)
    return joint, (share * (variance + (mean - joint.unsqueeze(1)).square())).sum(1)


class RtformerTemporalNorm(PlainBatchNorm):
    """TSBN of [B, T, C, H, W]."""

    def __init__(self, channels: int, window: int) -> None:
        super().__init__(channels)
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return per_step(super().forward, x)
        wide = at_least_float32(x)
        variance, mean = torch.var_mean(wide, (0, 3, 4), correction=0)
        mean, variance = window_moments(*joint_spread(mean, variance), self.window)
        self.num_batches_tracked += 1
        momentum = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        with torch.no_grad():
            self.running_mean.lerp_(mean.mean(0), momentum)
            self.running_var.lerp_(variance.mean(0), momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        shift = self.bias - mean * scale
        return (wide * scale[..., None, None] + shift[..., None, None]).to(x.dtype)


class RtformerLayer(nn.Module):
    """Convolution, sliding norm, neuron: [B, T, C, H, W] → spikes [B, T, C', H, W]."""

    def __init__(self, in_channels: int, channels: int, kernel: int, window: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, kernel, padding=kernel // 2, bias=False)
        self.norm = RtformerTemporalNorm(channels, window)
        self.neuron = sigmoid_neuron()

    def forward(self, x: Tensor) -> Tensor:
        return self.neuron(self.norm(per_step(self.conv, x)))[0]


class RtformerCore(nn.Module):
    """The spatial-temporal core: [B, T, C, H, W] → spikes of the same shape."""

    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(ConvNorm(width, width, kernel, groups=width) for kernel in (3, 1))
        self.mix = RtformerLayer(width, width, 1, window)

    def forward(self, x: Tensor) -> Tensor:
        three, one = (branch(x) for branch in self.branches)
        return self.mix(three + one)


class RtformerAttention(nn.Module):
    """Attention of spikes without a softmax, among the positions of every step: [B, T, C, H, W] → spikes."""

    def __init__(self, width: int, num_heads: int, window: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.projection = (RtformerCore(width, window) for _ in range(4))
        self.sum_values, self.read_values = SpikeMatmul(), SpikeMatmul()
        self.neuron = sigmoid_neuron(ATTENTION_THRESHOLD)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._by_head(core(x)) for core in (self.query, self.key, self.value))
        read = self.read_values(query, self.sum_values(key.transpose(-2, -1), value) * SCALE)
        maps = read.transpose(-2, -1).flatten(2, 3).unflatten(3, x.shape[3:])
        return self.projection(self.neuron(maps)[0])

    def _by_head(self, maps: Tensor) -> Tensor:
        """[B, T, C, H, W] → [B, T, heads, H·W, C / heads]."""
        return maps.flatten(3).unflatten(2, (self.num_heads, -1)).transpose(-2, -1)


class RtformerBlock(nn.Module):
    def __init__(self, config: RtformerConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.mlp_ratio * config.width
        self.attention = RtformerAttention(width, config.num_heads, config.window)
        self.expand = RtformerLayer(width, hidden, 1, config.window)
        self.contract = RtformerLayer(hidden, width, 1, config.window)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.contract(self.expand(x))


@register_architecture(RtformerConfig)
class Rtformer(PeerModel[RtformerConfig]):
    answers_once = True

    def __init__(self, config: RtformerConfig, name: str) -> None:
        super().__init__(config, name)
        width = config.width
        pairs = pairwise((2, width // 8, width // 4, width // 2, width))
        self.embedding = nn.ModuleList(RtformerLayer(*pair, 3, config.window) for pair in pairs)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.position = RtformerLayer(width, width, 3, config.window)
        self.blocks = nn.ModuleList(RtformerBlock(config) for _ in range(config.depth))
        self.add_head(width)

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → the mean of all tokens [B, 1, d]."""
        for layer in self.embedding:
            x = per_step(self.pool, layer(x))
        x = x + self.position(x)
        for block in self.blocks:
            x = block(x)
        return x.mean((1, 3, 4)).unsqueeze(1)


@register_model("rtformer")
def rtformer() -> ModelConfig:
    return RtformerConfig()
