"""C3D: Tran, Bourdev, Fergus, Torresani & Paluri, "Learning Spatiotemporal Features with 3D Convolutional Networks",
ICCV 2015. A video network without spikes.

Eight 3×3×3 convolutions with ReLU in five groups (64; 128; 256, 256; 512, 512; 512, 512), a max-pool after each group,
two hidden layers of 4096 units with ReLU and dropout of one half, and one Linear. The first pool leaves time alone; the
others halve it, as all of them halve height and width, rounded up: a clip of 16 frames ends as one cell of time.

Published for DailyDVS-200: 147.2 M parameters, 21.99 %. At 224×224 and 16 frames this network has 147.20 M below its
last Linear, which adds 0.82 M for 200 classes: 148,019,464 in all.

Adapted here: the first convolution reads two channels, the polarities, instead of three colors. The original reads
frames of 112×112; the printed count is that of 224×224, where the first hidden layer reads 7×7 cells. A clip with fewer
frames than `time_steps` is continued without events. Its weights depend on the input's size. It has no norms, and the
original starts from weights trained on sports videos; here it starts from random ones, scaled for ReLU.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.registry import register_model

CONVOLUTIONS = (1, 1, 2, 2, 2)  # in each group
DROP_RATE = 0.5


@dataclass(frozen=True)
class C3dConfig(PeerConfig):
    architecture: ClassVar[str] = "c3d"

    num_classes: int = 200
    in_size: tuple[int, int] = (224, 224)
    channels: tuple[int, int, int, int, int] = (64, 128, 256, 512, 512)  # of the five groups of convolutions
    hidden_size: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("channels", 5)
        self._check_count("hidden_size")

    @property
    def max_time_steps(self) -> int | None:
        return self.time_steps

    def cells(self) -> int:
        """How many cells of time, height and width the last pool leaves."""
        groups = len(self.channels)
        height, width = self.in_size
        return _halved(self.time_steps, groups - 1) * _halved(height, groups) * _halved(width, groups)


def _halved(size: int, times: int) -> int:
    return -(-size // 2**times)


@register_architecture(C3dConfig)
class C3d(PeerModel[C3dConfig]):
    one_size = True
    answers_once = True

    def __init__(self, config: C3dConfig, name: str) -> None:
        super().__init__(config, name)
        self.convs = nn.Sequential()
        before = 2
        for group, (after, count) in enumerate(zip(config.channels, CONVOLUTIONS, strict=True)):
            for _ in range(count):
                self.convs.extend((nn.Conv3d(before, after, 3, padding=1), nn.ReLU()))
                before = after
            self.convs.append(nn.MaxPool3d((2 if group else 1, 2, 2), ceil_mode=True))
        self.first_hidden = nn.Linear(before * config.cells(), config.hidden_size)
        self.second_hidden = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(DROP_RATE)
        for module in self.modules():
            if isinstance(module, nn.Conv3d | nn.Linear):  # PyTorch's own start shrinks ten layers of ReLU to nothing
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        self.add_head(config.hidden_size)

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → [B, 1, hidden]."""
        clip = F.pad(x, (0, 0, 0, 0, 0, 0, 0, self.config.time_steps - x.shape[1])).transpose(1, 2)
        hidden = self.convs(clip).flatten(1)
        for layer in (self.first_hidden, self.second_hidden):
            hidden = self.dropout(torch.relu(layer(hidden)))
        return hidden.unsqueeze(1)


@register_model("c3d")
def c3d() -> ModelConfig:
    return C3dConfig()
