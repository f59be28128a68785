"""The convolutional networks of PLIF, whose neurons learn their time constant.

W. Fang, Z. Yu, Y. Chen, T. Masquelier, T. Huang, Y. Tian: "Incorporating Learnable Membrane Time Constant to Enhance
Learning of Spiking Neural Networks", ICCV 2021.

    {c128k3s1-BN-PLIF-MPk2s2}×n – DP – FCm – PLIF – DP – FC(10·classes) – PLIF – APk10s10

    c128k3s1       128 kernels of 3×3, without bias        BN    batch norm over all steps
    PLIF           u_t = v + (x_t − v)·σ(w) with one learned w a layer, fires at 1, reset to 0 without gradient,
                   σ(w) = 1/2 at the start, arc-tangent surrogate
    MPk2s2         the maximum of 2×2 spikes               DP    dropout of one half, one mask for all steps of a clip
    FCm            a Linear without bias                   AP    the mean of ten neurons is one class's logit

    dataset        n    m       T     size      parameters
    DVS-Gesture    5    512     20    128×128       1.70 M
    CIFAR10-DVS    4    512     20    128×128       4.69 M
    N-MNIST        2    2048    10    34×34        17.13 M

Table 1 of the RIPE-MambaSpike paper lists the N-MNIST network (99.61 %, T = 10) with 0.87 M parameters. Its first
Linear alone has 16.8 M weights, so that count belongs to another network; which one is the missing fact. For
CIFAR10-DVS, the first code of the authors has m = 2048, a quarter of the map, and their SpikingJelly m = 512, as here
(`hidden_size`). The paper trains firing rates towards one-hot targets; here every step's logits are trained as those
of any other network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.peers.layers import ConvNorm, per_step
from ripe_mambaspike.models.registry import register_model
from ripe_mambaspike.nn.leaky import LeakyNeuron

VOTERS = 10  # neurons a class


@dataclass(frozen=True)
class PlifNetConfig(PeerConfig):
    architecture: ClassVar[str] = "plif-net"

    time_steps: int = 20
    channels: int = 128
    depth: int = 5  # convolutions, each followed by a pooling of two
    hidden_size: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_count("channels", "depth", "hidden_size")
        if not isinstance(self.dropout, float | int) or not 0 <= self.dropout < 1:
            self._refuse("dropout", "a number from 0 up to but not including 1")
        if min(self.grid()) < 1:
            self._refuse("depth", f"at most {min(self.in_size).bit_length() - 1} poolings of {self.in_size}")

    def grid(self) -> tuple[int, int]:
        """Height and width of the last map."""
        return self.in_size[0] >> self.depth, self.in_size[1] >> self.depth


def clip_dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout of x [B, T, d] with one mask [B, 1, d] for all steps of a clip."""
    if not training or rate == 0:
        return x
    kept = torch.empty_like(x[:, :1]).bernoulli_(1 - rate)
    return x * kept / (1 - rate)


class PlifLayer(nn.Module):
    """Convolution, norm, neuron, pooling: [B, T, C, H, W] → spikes [B, T, C', H/2, W/2]."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = ConvNorm(in_channels, channels, 3)
        self.neuron = LeakyNeuron(learn_tau=True)

    def forward(self, x: Tensor) -> Tensor:
        return per_step(lambda spikes: F.max_pool2d(spikes, 2), self.neuron(self.conv(x))[0])


class PlifVoters(nn.Module):
    """Features [B, T, d] → of every class the share of its ten neurons that fire [B, T, num_classes]."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, VOTERS * num_classes, bias=False)
        self.neuron = LeakyNeuron(learn_tau=True)

    def forward(self, x: Tensor) -> Tensor:
        spikes: Tensor = self.neuron(self.linear(x))[0]
        return spikes.unflatten(2, (-1, VOTERS)).mean(3)


@register_architecture(PlifNetConfig)
class PlifNet(PeerModel[PlifNetConfig]):
    one_size = True

    def __init__(self, config: PlifNetConfig, name: str) -> None:
        super().__init__(config, name)
        widths = (2, *[config.channels] * config.depth)
        height, width = config.grid()
        self.layers = nn.ModuleList(PlifLayer(*pair) for pair in pairwise(widths))
        self.hidden = nn.Linear(config.channels * height * width, config.hidden_size, bias=False)
        self.hidden_neuron = LeakyNeuron(learn_tau=True)
        self.head = PlifVoters(config.hidden_size, config.num_classes) if config.num_classes else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → spikes of the hidden layer [B, T, hidden]."""
        for layer in self.layers:
            x = layer(x)
        rate = self.config.dropout
        spikes: Tensor = self.hidden_neuron(self.hidden(clip_dropout(x.flatten(2), rate, self.training)))[0]
        return clip_dropout(spikes, rate, self.training)

    def reset_classifier(self, num_classes: int, class_names: Sequence[str] | None = None) -> None:
        voters, self.head = self.head, nn.Identity()  # the inherited method replaces a Linear or nothing
        try:
            super().reset_classifier(num_classes, class_names)
        except ConfigError:
            self.head = voters
            raise
        if num_classes:
            like = self.hidden.weight
            self.head = PlifVoters(self.config.hidden_size, num_classes).to(like.device, like.dtype)

    @property
    def num_features(self) -> int:
        return self.config.hidden_size


@register_model("plif-net")
def plif_net() -> ModelConfig:
    return PlifNetConfig()


@register_model("plif-net-cifar10dvs")
def plif_net_cifar10dvs() -> ModelConfig:
    return PlifNetConfig(num_classes=10, depth=4)


@register_model("plif-net-nmnist")
def plif_net_nmnist() -> ModelConfig:
    return PlifNetConfig(num_classes=10, time_steps=10, in_size=(34, 34), depth=2, hidden_size=2048)
