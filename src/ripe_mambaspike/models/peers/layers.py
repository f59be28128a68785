"""Layers that several networks share."""

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from ripe_mambaspike.nn.leaky import LeakyNeuron
from ripe_mambaspike.nn.plain_norm import PlainBatchNorm


class SpikeMatmul(nn.Module):
    """a @ b of spikes, as a module so that its operands can be watched."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def per_step(image_function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of images [N, C, H, W], such as a Conv2d, over every step of x [B, T, C, H, W]."""
    return image_function(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class ConvNorm(nn.Module):
    """A convolution and its batch norm: [B, T, C, H, W] → [B, T, C', H', W'], with statistics over all steps."""

    def __init__(
        self, in_channels: int, channels: int, kernel: int = 3, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, groups=groups, bias=bias)
        self.norm = PlainBatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return per_step(lambda images: self.norm(self.conv(images)), x)


def sigmoid_neuron() -> LeakyNeuron:
    """SpikingJelly's LIF node as most transformers use it: τ 2, threshold 1, hard reset, a sigmoid as surrogate."""
    return LeakyNeuron(surrogate="sigmoid", sharpness=4.0)


class MembranePatchSplitting(nn.Module):
    """Events [B, T, 2, H, W] → membrane potentials [B, T, width, H / 16, W / 16], rounded up.

    Four times a 3×3 convolution that doubles the width and a 3×3 max-pool of stride 2. A neuron fires before each of
    the first three pools and after the last; its spikes go through a last convolution, the relative position encoding,
    and the potentials before it are added (Yao et al., "Spike-driven Transformer", NeurIPS 2023).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [2, width // 8, width // 4, width // 2, width]
        self.convs = nn.ModuleList(ConvNorm(before, after) for before, after in pairwise(widths))
        self.neurons = nn.ModuleList(sigmoid_neuron() for _ in self.convs)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.position = ConvNorm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for conv, neuron in zip(self.convs[:-1], self.neurons[:-1], strict=True):
            x = per_step(self.pool, neuron(conv(x))[0])
        x = per_step(self.pool, self.convs[-1](x))
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
