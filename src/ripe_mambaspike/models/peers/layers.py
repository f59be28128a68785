"""Layers that several networks share.

Maps are [B, T, C, H, W]; convolutions, norms and pools see them as [B·T, C, H, W], which is a view. A network lays the
channels last in memory once, at its entry (`channels_last`); all layers keep this order, and so do the neurons.
"""

from collections.abc import Callable, Collection
from itertools import pairwise

import torch
from torch import Tensor, nn

from ripe_mambaspike.nn.leaky import LeakyNeuron
from ripe_mambaspike.nn.plain_norm import PlainBatchNorm


class SpikeMatmul(nn.Module):
    """a @ b of spikes, as a module so that its operands can be watched."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def channels_last(x: Tensor) -> Tensor:
    """The same maps [B, T, C, H, W], in memory as [B, T, H, W, C]."""
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, x.shape[:2])


def per_step(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A layer of images on the image of every step: [B, T, C, H, W] → [B, T, C', H', W']."""
    return layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class ConvNorm(nn.Module):
    """A convolution that keeps the size, up to its stride, and a batch norm with statistics over all steps.

    [B, T, C, H, W] → [B, T, C', H', W'].
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, kernel_size, stride, kernel_size // 2, groups=groups, bias=bias)
        self.norm = PlainBatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x.flatten(0, 1))).unflatten(0, x.shape[:2])


def overlapping_pool() -> nn.MaxPool2d:
    """The max pool by which spiking transformers halve a map, rounding up."""
    return nn.MaxPool2d(3, stride=2, padding=1)


def sigmoid_neuron(threshold: float = 1.0) -> LeakyNeuron:
    """The neuron of spiking transformers: τ = 2, hard reset, and the slope of σ(4x)."""
    return LeakyNeuron(threshold=threshold, surrogate="sigmoid", sharpness=4.0)


class SpikeAttention(nn.Module):
    """q (kᵀ v) · scale: attention of spikes without a softmax, [..., N, d] → [..., N, d].

    It is the product (q kᵀ) v, to the bit as long as counts are exact, with N · d² instead of N² · d additions a head.
    """

    def __init__(self) -> None:
        super().__init__()
        self.key_value = SpikeMatmul()
        self.query = SpikeMatmul()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return self.query(q, self.key_value(k.transpose(-1, -2), v) * scale)


def split_qkv(x: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    """Maps [B, T, 3C, H, W] → the tokens q, k and v of every head, each [B, T, heads, H·W, C / heads], in one copy."""
    heads = x.flatten(3).unflatten(2, (3, num_heads, -1))
    return heads.permute(2, 0, 1, 3, 5, 4).contiguous().unbind()


def join_heads(x: Tensor, size: torch.Size) -> Tensor:
    """Tokens of every head [B, T, heads, H·W, d] → maps [B, T, heads · d, H, W], the channels last in memory."""
    return x.transpose(2, 3).flatten(3).transpose(2, 3).unflatten(3, size)


class MembranePatchSplitting(nn.Module):
    """Events [B, T, 2, H, W] → membrane potentials [B, T, width, H', W'], H' = H / 16 with all pools, rounded up.

    Four 3×3 convolutions that double the width, those in `pooled` (from 1 to 4) with a 3×3 max-pool of stride 2. A
    neuron fires before each of the first three pools and after the last; its spikes go through a last convolution, the
    relative position encoding, and the potentials before it are added (Yao et al., "Spike-driven Transformer",
    NeurIPS 2023).
    """

    def __init__(self, width: int, pooled: Collection[int] = (1, 2, 3, 4)) -> None:
        super().__init__()
        widths = [2, width // 8, width // 4, width // 2, width]
        self.convs = nn.ModuleList(ConvNorm(before, after, 3) for before, after in pairwise(widths))
        self.neurons = nn.ModuleList(sigmoid_neuron() for _ in self.convs)
        self.pools = nn.ModuleList(overlapping_pool() if n in pooled else nn.Identity() for n in (1, 2, 3, 4))
        self.position = ConvNorm(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for conv, neuron, pool in zip(self.convs[:-1], self.neurons[:-1], self.pools[:-1], strict=True):
            x = per_step(pool, neuron(conv(x))[0])
        x = per_step(self.pools[-1], self.convs[-1](x))
        return x + self.position(self.neurons[-1](x)[0])


class MembraneMlp(nn.Module):
    """Two pointwise convolutions, each behind its neuron, so that all sums are of potentials: [B, T, C, H, W] as is."""

    def __init__(self, width: int, ratio: int) -> None:
        super().__init__()
        self.first_neuron, self.second_neuron = sigmoid_neuron(), sigmoid_neuron()
        self.expand = ConvNorm(width, ratio * width, 1, bias=True)
        self.contract = ConvNorm(ratio * width, width, 1, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.second_neuron(self.expand(self.first_neuron(x)[0]))[0])
