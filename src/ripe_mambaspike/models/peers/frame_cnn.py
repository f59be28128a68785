"""A frame CNN: what a user of image networks would try first. It has no spikes and no sense of time.

The event frames of a clip are averaged over its steps, and the one frame that remains is classified by a network of the
shape of ResNet-18 (He, Zhang, Ren & Sun, "Deep Residual Learning for Image Recognition", CVPR 2016): a 7×7 convolution
of stride 2, a 3×3 max-pool of stride 2, four levels of two residual blocks, the mean over all positions, one Linear.
The first convolution reads two channels, the polarities, instead of three colors; everything else is theirs. At 1000
classes their network has 11,689,512 parameters, and this one 3,136 fewer.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.peers.layers import ConvNorm, per_step
from ripe_mambaspike.models.registry import register_model

BLOCKS = 2  # in every level


@dataclass(frozen=True)
class FrameCnnConfig(PeerConfig):
    architecture: ClassVar[str] = "frame-cnn"

    channels: tuple[int, int, int, int] = (64, 128, 256, 512)  # of the four levels; the first is also the stem's

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("channels", 4)


class FrameCnnBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, projected where the shape changes; [B, S, C, H, W] as all of ConvNorm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(before, after, 3, stride)
        self.second = ConvNorm(after, after, 3)
        self.shortcut = ConvNorm(before, after, 1, stride) if stride > 1 or before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


@register_architecture(FrameCnnConfig)
class FrameCnn(PeerModel[FrameCnnConfig]):
    answers_once = True

    def __init__(self, config: FrameCnnConfig, name: str) -> None:
        super().__init__(config, name)
        widths = config.channels
        self.stem = ConvNorm(2, widths[0], 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(*(FrameCnnBlock(widths[0], widths[0], 1) for _ in range(BLOCKS)))
        for before, after in pairwise(widths):
            self.blocks.append(FrameCnnBlock(before, after, 2))
            self.blocks.extend(FrameCnnBlock(after, after, 1) for _ in range(BLOCKS - 1))
        self.add_head(widths[-1])

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → [B, 1, d]."""
        frame = torch.relu(self.stem(x.mean(1, keepdim=True)))  # one step
        return self.blocks(per_step(self.pool, frame)).mean((3, 4))


@register_model("frame-cnn")
def frame_cnn() -> ModelConfig:
    return FrameCnnConfig()
