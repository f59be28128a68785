"""Layers that several networks share."""

from collections.abc import Callable

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


def sigmoid_neuron(threshold: float = 1.0) -> LeakyNeuron:
    """The neuron of spiking transformers: τ = 2, hard reset, and the slope of σ(4x)."""
    return LeakyNeuron(threshold=threshold, surrogate="sigmoid", sharpness=4.0)
