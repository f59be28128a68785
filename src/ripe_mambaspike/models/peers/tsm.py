"""TSM: Lin, Gan & Han, "TSM: Temporal Shift Module for Efficient Video Understanding", ICCV 2019. A video network
without spikes.

ResNet-50 (He et al., CVPR 2016) over every frame. At the start of every block's residual branch an eighth of the
channels is replaced by those of the next frame and another eighth by those of the frame before, with zeros beyond the
ends of the clip; the shortcut is not shifted. The logits of all frames are averaged. It reads 8 frames and has dropout
of one half before its last Linear.

Published for DailyDVS-200: 24.3 M parameters, 40.87 %. The printed count is that of 400 classes, which the network has
for Kinetics: 24,327,632 with three input channels. With two channels and the 200 classes of DailyDVS-200 it has
23,914,696.

Adapted here: the first convolution reads two channels, the polarities, instead of three colors. Since the head is
linear, the mean is taken before it, so that the loss is that of the averaged logits, as in the paper. The original
starts from weights trained on ImageNet; here it starts from random ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.peers.layers import ConvNorm, per_step
from ripe_mambaspike.models.registry import register_model

EXPANSION = 4  # of a block's output over its inner width
SHARE = 8  # one of so many channels is shifted in each direction
DROP_RATE = 0.5


@dataclass(frozen=True)
class TsmConfig(PeerConfig):
    architecture: ClassVar[str] = "tsm"

    num_classes: int = 200
    time_steps: int = 8
    in_size: tuple[int, int] = (224, 224)
    channels: tuple[int, int, int, int] = (64, 128, 256, 512)  # inner widths of four levels; the first is the stem's
    depths: tuple[int, int, int, int] = (3, 4, 6, 3)  # blocks of the four levels

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("channels", 4)
        self._check_counts("depths", 4)


def temporal_shift(x: Tensor) -> Tensor:
    """x [B, T, C, ...] as is, but C // 8 channels of the next step first, then C // 8 of the step before."""
    each = x.shape[2] // SHARE
    edge = torch.zeros_like(x[:, :1, :each])
    from_next = torch.cat((x[:, 1:, :each], edge), 1)
    from_last = torch.cat((edge, x[:, :-1, each : 2 * each]), 1)
    return torch.cat((from_next, from_last, x[:, :, 2 * each :]), 2)


class TsmBlock(nn.Module):
    """A bottleneck with a shifted residual branch: [B, T, C, H, W] → [B, T, 4 · width, H', W']."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = EXPANSION * width
        self.reduce = ConvNorm(before, width, 1)
        self.conv = ConvNorm(width, width, 3, stride)
        self.expand = ConvNorm(width, after, 1)
        self.shortcut = ConvNorm(before, after, 1, stride) if stride > 1 or before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv(torch.relu(self.reduce(temporal_shift(x)))))
        return torch.relu(self.expand(y) + self.shortcut(x))


@register_architecture(TsmConfig)
class Tsm(PeerModel[TsmConfig]):
    answers_once = True

    def __init__(self, config: TsmConfig, name: str) -> None:
        super().__init__(config, name)
        self.stem = ConvNorm(2, config.channels[0], 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(*_blocks(config))
        self.dropout = nn.Dropout(DROP_RATE)
        self.add_head(EXPANSION * config.channels[-1])

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → [B, 1, d]."""
        frames = self.blocks(per_step(self.pool, torch.relu(self.stem(x))))
        return self.dropout(frames.mean((3, 4))).mean(1, keepdim=True)


def _blocks(config: TsmConfig) -> Iterator[TsmBlock]:
    before = config.channels[0]
    for level, (width, depth) in enumerate(zip(config.channels, config.depths, strict=True)):
        for index in range(depth):
            yield TsmBlock(before, width, 2 if level and index == 0 else 1)
            before = EXPANSION * width


@register_model("tsm")
def tsm() -> ModelConfig:
    return TsmConfig()
