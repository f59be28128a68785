"""An event-count MLP: the floor that any other network should exceed. It has no spikes and no sense of time.

The events of a clip are summed over time, pooled to a coarse grid, and classified by a hidden layer.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.registry import register_model


@dataclass(frozen=True)
class EventMlpConfig(PeerConfig):
    architecture: ClassVar[str] = "event-mlp"

    grid_size: int = 16  # cells a side on which events are counted
    hidden_size: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_count("grid_size", "hidden_size")


@register_architecture(EventMlpConfig)
class EventMlp(PeerModel[EventMlpConfig]):
    answers_once = True

    def __init__(self, config: EventMlpConfig, name: str) -> None:
        super().__init__(config, name)
        self.norm = nn.LayerNorm(2 * config.grid_size**2)
        self.hidden = nn.Linear(2 * config.grid_size**2, config.hidden_size)
        self.add_head(config.hidden_size)

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → [B, 1, hidden]."""
        counts = F.adaptive_avg_pool2d(x.sum(1), self.config.grid_size).flatten(1)
        return F.gelu(self.hidden(self.norm(counts.log1p()))).unsqueeze(1)


@register_model("event-mlp")
def event_mlp() -> ModelConfig:
    return EventMlpConfig()
