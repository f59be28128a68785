"""Spike-driven Transformer V2, Meta-SpikeFormer: stages of convolutions, then stages of attention.

M. Yao, J. Hu, T. Hu, Y. Xu, Z. Zhou, Y. Tian, B. Xu, G. Li: "Spike-driven Transformer V2: Meta Spiking Neural Network
Architecture Inspiring the Design of Next-generation Neuromorphic Chips", ICLR 2024.

    SN       a leaky neuron; BN a batch norm; u a membrane, which shortcuts add up
    down     BN(Conv(SN(u))): 7×7 with stride 2 and without SN at the input, then 3×3 with strides 2, 2, 2 and 1
    SepConv  BN(W₂ DWConv7×7(SN(BN(W₁ SN(u))))), twice as wide inside
    Channel  BN(Conv3×3(SN(BN(Conv3×3(SN(u)))))), four times as wide inside
    RepConv  a 3×3 convolution in factors: W₁ – BN – DWConv3×3 – W₂ – BN, and a BN
    SDSA     q, k, v = SN(RepConv(SN(u))); RepConv(SN₀.₅(q (kᵀ v) · 1/8)); eight heads
    MLP      BN(W₂ SN(BN(W₁ SN(u)))), four times as wide inside
    conv block       u ← u + SepConv(u); u ← u + Channel(u)
    attention block  u ← u + SDSA(u); u ← u + MLP(u)

With widths (C, 2C, 4C, D) the conv blocks have C/2, C, 2C and 2C channels, the attention blocks 4C and D. In evaluation
a border of RepConv is what zeros become behind its first norm, so that its factors are one 3×3 convolution with zeros
around the map; in training, with the running statistics of that norm, as in the authors' release.

Not determined: the paper has no network for CIFAR10-DVS or N-Caltech101, and the 4.34 M with which it is quoted for
them fit none of its sizes (15.1, 31.3 and 55.4 M with widths (64, 128, 256, 360), (96, 192, 384, 480) and (128, 256,
512, 640) and 6 + 2 attention blocks, all of which this file reproduces). What is missing are the widths and depths.
Decided here: half of its smallest first width, doubled at every stage, (32, 64, 128, 256), and 4 + 2 blocks: 4.36 M.
The head reads the mean of SN(u) over the tokens, as the first version's; the release reads the mean of u instead.

`sdt-v2-stride4` is for inputs of 34×34 to 48×48: the first two strides are 1, all parameters stay. It has 9×9 to 12×12
tokens, where stride 16 has 3×3; behind the first stage its maps are those of stride 16 at 128×128 to 192×192. This is
decided here, since the authors have no form for such inputs and stride 16 does not train on them: what SN₀.₅ reads
grows with the number of tokens, and on nine it never fires when training begins. The norms behind it then have a
variance of zero and multiply gradients by up to 300 each, and after six blocks the gradient exceeds float32.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.peers.layers import (
    ConvNorm,
    SpikeAttention,
    channels_last,
    join_heads,
    per_step,
    sigmoid_neuron,
    split_qkv,
)
from ripe_mambaspike.models.registry import register_model
from ripe_mambaspike.nn.plain_norm import PlainBatchNorm

SCALE = 0.125  # of the attention
ATTENTION_THRESHOLD = 0.5
SEPARABLE_RATIO, SEPARABLE_KERNEL = 2, 7


@dataclass(frozen=True)
class SdtV2Config(PeerConfig):
    architecture: ClassVar[str] = "sdt-v2"

    widths: tuple[int, int, int, int] = (32, 64, 128, 256)  # channels of the stages
    depths: tuple[int, int] = (4, 2)  # attention blocks of the last two stages
    strides: tuple[int, int, int, int, int] = (2, 2, 2, 2, 1)  # of the convolution at the input and of the others
    num_heads: int = 8
    mlp_ratio: int = 4  # width inside the MLP and the channel convolution

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("widths", 4)
        self._check_counts("depths", 2)
        self._check_counts("strides", 5)
        self._check_count("num_heads", "mlp_ratio")
        if self.widths[0] % 2 or self.widths[2] % self.num_heads or self.widths[3] % self.num_heads:
            self._refuse("widths", f"an even one, any, and two multiples of num_heads {self.num_heads}")


class SdtV2SpikeConvs(nn.Module):
    """BN(Conv(SN(BN(Conv(SN(u)))))) on membranes [B, T, C, H, W], `hidden` channels inside."""

    def __init__(self, channels: int, hidden: int, kernel_size: int, bias: bool) -> None:
        super().__init__()
        self.neuron, self.hidden_neuron = sigmoid_neuron(), sigmoid_neuron()
        self.expand = ConvNorm(channels, hidden, kernel_size, bias=bias)
        self.contract = ConvNorm(hidden, channels, kernel_size, bias=bias)

    def forward(self, membrane: Tensor) -> Tensor:
        hidden, _ = self.hidden_neuron(self.expand(self.neuron(membrane)[0]))
        return self.contract(hidden)


class SdtV2SeparableConv(nn.Module):
    """SepConv on membranes [B, T, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden, kernel = SEPARABLE_RATIO * channels, SEPARABLE_KERNEL
        self.neuron, self.hidden_neuron = sigmoid_neuron(), sigmoid_neuron()
        self.expand = ConvNorm(channels, hidden)
        self.spatial = nn.Conv2d(hidden, hidden, kernel, padding=kernel // 2, groups=hidden, bias=False)
        self.contract = ConvNorm(hidden, channels)

    def forward(self, membrane: Tensor) -> Tensor:
        hidden, _ = self.hidden_neuron(self.expand(self.neuron(membrane)[0]))
        return self.contract(per_step(self.spatial, hidden))


class SdtV2RepConv(nn.Module):
    """RepConv from images [N, C, H, W] to the same size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(channels, channels, 1, bias=False)
        self.expand_norm = PlainBatchNorm(channels)
        self.spatial = nn.Conv2d(channels, channels, 3, groups=channels, bias=False)
        self.contract = nn.Conv2d(channels, channels, 1, bias=False)
        self.contract_norm = PlainBatchNorm(channels)
        self.norm = PlainBatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = pad_with_norm_of_zero(self.expand_norm(self.expand(x)), self.expand_norm)
        return self.norm(self.contract_norm(self.contract(self.spatial(inner))))


def pad_with_norm_of_zero(x: Tensor, norm: PlainBatchNorm) -> Tensor:
    """x [N, C, H, W] with a border of one pixel [N, C, H + 2, W + 2]: what the norm makes of zero, a constant."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    with torch.no_grad():
        zero = (norm.bias - mean * norm.weight * torch.rsqrt(variance + norm.eps)).to(x.dtype)
        border = F.pad(x.new_zeros(x.shape[2:]), (1, 1, 1, 1), value=1.0)
        ring = zero[:, None, None] * border
    return F.pad(x, (1, 1, 1, 1)) + ring


class SdtV2Attention(nn.Module):
    """SDSA on membranes [B, T, C, H, W]."""

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.neuron, self.qkv_neuron = sigmoid_neuron(), sigmoid_neuron()
        self.qkv = nn.ModuleList(SdtV2RepConv(channels) for _ in range(3))
        self.attention = SpikeAttention()
        self.attention_neuron = sigmoid_neuron(ATTENTION_THRESHOLD)
        self.proj = SdtV2RepConv(channels)

    def forward(self, membrane: Tensor) -> Tensor:
        images = self.neuron(membrane)[0].flatten(0, 1)
        qkv = torch.cat([conv(images) for conv in self.qkv], 1).unflatten(0, membrane.shape[:2])
        mixed = self.attention(*split_qkv(self.qkv_neuron(qkv)[0], self.num_heads), SCALE)
        return per_step(self.proj, self.attention_neuron(join_heads(mixed, membrane.shape[3:]))[0])


class SdtV2Down(nn.Module):
    """Membranes [B, T, C, H, W] → [B, T, C', ⌈H / stride⌉, ⌈W / stride⌉], through spikes."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.neuron = sigmoid_neuron()
        self.conv = ConvNorm(in_channels, channels, 3, stride, bias=True)

    def forward(self, membrane: Tensor) -> Tensor:
        return self.conv(self.neuron(membrane)[0])


class SdtV2Shortcuts(nn.Module):
    """u ← u + layer(u), one layer after the other."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, membrane: Tensor) -> Tensor:
        for layer in self.layers:
            membrane = membrane + layer(membrane)
        return membrane


@register_architecture(SdtV2Config)
class SdtV2(PeerModel[SdtV2Config]):
    def __init__(self, config: SdtV2Config, name: str) -> None:
        super().__init__(config, name)
        first, second, third, fourth = config.widths
        strides = config.strides

        def conv_blocks(width: int, depth: int) -> SdtV2Shortcuts:
            hidden = config.mlp_ratio * width
            pairs = ((SdtV2SeparableConv(width), SdtV2SpikeConvs(width, hidden, 3, bias=False)) for _ in range(depth))
            return SdtV2Shortcuts(chain.from_iterable(pairs))

        def attention_blocks(width: int, depth: int) -> SdtV2Shortcuts:
            hidden, heads = config.mlp_ratio * width, config.num_heads
            pairs = ((SdtV2Attention(width, heads), SdtV2SpikeConvs(width, hidden, 1, bias=True)) for _ in range(depth))
            return SdtV2Shortcuts(chain.from_iterable(pairs))

        self.stages = nn.Sequential(
            ConvNorm(2, first // 2, 7, strides[0], bias=True),
            conv_blocks(first // 2, 1),
            SdtV2Down(first // 2, first, strides[1]),
            conv_blocks(first, 1),
            SdtV2Down(first, second, strides[2]),
            conv_blocks(second, 2),
            SdtV2Down(second, third, strides[3]),
            attention_blocks(third, config.depths[0]),
            SdtV2Down(third, fourth, strides[4]),
            attention_blocks(fourth, config.depths[1]),
        )
        self.neuron = sigmoid_neuron()
        self.add_head(fourth)

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → firing rates of the channels at every step [B, T, D]."""
        return self.neuron(self.stages(channels_last(x)))[0].mean((3, 4))


@register_model("sdt-v2")
def sdt_v2() -> ModelConfig:
    return SdtV2Config(num_classes=10, time_steps=10)


@register_model("sdt-v2-stride4")
def sdt_v2_stride4() -> ModelConfig:
    return SdtV2Config(num_classes=10, time_steps=10, in_size=(34, 34), strides=(1, 1, 2, 2, 1))
