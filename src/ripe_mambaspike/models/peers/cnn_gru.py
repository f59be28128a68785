"""A CNN for every step and a GRU over the steps: what a user of recurrent networks would try first, without spikes.

Three 3×3 convolutions of stride 2, each with batch norm and ReLU, read the frame of a step. Their mean over all
positions is the step's input of a gated recurrent unit (Cho et al., "Learning Phrase Representations using RNN
Encoder–Decoder for Statistical Machine Translation", EMNLP 2014), in the form of PyTorch's `nn.GRU`:

    r = σ(W_r x + U_r h)                reset gate
    z = σ(W_z x + U_z h)                update gate
    n = tanh(W_n x + r ⊙ (U_n h))       candidate, each product with its bias
    h ← (1 − z) ⊙ n + z ⊙ h             state

Every step is classified from its state h, so a step's logits depend on it and earlier ones alone.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.peers.layers import ConvNorm
from ripe_mambaspike.models.registry import register_model


@dataclass(frozen=True)
class CnnGruConfig(PeerConfig):
    architecture: ClassVar[str] = "cnn-gru"

    channels: tuple[int, int, int] = (32, 64, 128)  # of the three convolutions
    hidden_size: int = 256  # of the recurrent unit

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("channels", 3)
        self._check_count("hidden_size")


class CnnGruUnit(nn.Module):
    """x [B, T, d] → (states of every step [B, T, hidden], the last one [B, hidden])."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.input_proj = nn.Linear(width, 3 * hidden)  # r, z, n
        self.recurrent_proj = nn.Linear(hidden, 3 * hidden)

    def forward(self, x: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        inputs = self.input_proj(x)
        hidden = self.recurrent_proj.in_features
        state = inputs.new_zeros(x.shape[0], hidden) if initial_state is None else initial_state
        states = []
        for from_input in inputs.unbind(1):
            reset_in, update_in, new_in = from_input.chunk(3, -1)
            reset_h, update_h, new_h = self.recurrent_proj(state).chunk(3, -1)
            update = torch.sigmoid(update_in + update_h)
            new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_h) * new_h)
            state = new + update * (state - new)
            states.append(state)
        return torch.stack(states, 1), state


@register_architecture(CnnGruConfig)
class CnnGru(PeerModel[CnnGruConfig]):
    def __init__(self, config: CnnGruConfig, name: str) -> None:
        super().__init__(config, name)
        self.convs = nn.Sequential()
        for before, after in zip((2, *config.channels), config.channels, strict=False):
            self.convs.extend((ConvNorm(before, after, 3, 2), nn.ReLU()))
        self.gru = CnnGruUnit(config.channels[-1], config.hidden_size)
        self.add_head(config.hidden_size)

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → [B, T, hidden]."""
        return self.gru(self.convs(x).mean((3, 4)))[0]


@register_model("cnn-gru")
def cnn_gru() -> ModelConfig:
    return CnnGruConfig()
