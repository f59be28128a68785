"""QKFormer: a spiking transformer of two resolutions, the finer one with an attention of queries and keys alone.

C. Zhou, H. Zhang, Z. Zhou, L. Yu, L. Huang, X. Fan, L. Yuan, Z. Ma, H. Zhou, Y. Tian: "QKFormer: Hierarchical Spiking
Transformer using Q-K Attention", NeurIPS 2024. The variant for event cameras, 1.50 M parameters.

    SN     a leaky neuron; BN a batch norm; MP a max pool that halves the map
    SPEDS  patch embedding with a deformed shortcut: F(x) + SN(BN(Conv1×1(x))), its stride that of F
           stage 1: Conv3×3 – BN – SN, then three times Conv3×3 – BN – MP – SN; the shortcut skips the last two
           stage 2: Conv3×3 – BN – SN, then Conv3×3 – BN – MP – SN; the shortcut skips both
    QKTA   token attention: q, k = SN(BN(W x)); a = SN₀.₅(sum over a head's channels of q), one spike a token and head;
           then SN(BN(W (a ⊙ k)))
    SSA    Spikformer's attention, with the scale 1/8
    block  x ← x + QKTA(x) in stage 1 or SSA(x) in stage 2; x ← x + MLP(x), the MLP of Spikformer

Maps of C/2 channels at an eighth of the input's resolution, then of C channels at a sixteenth.

Left open by the paper, and decided here as in the authors' release for CIFAR10-DVS and DVS-Gesture: one block a stage,
an MLP that is not wider inside, sixteen heads, and thresholds of 1/2 for the neurons of both attentions.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ripe_mambaspike.models.base import register_architecture
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.peers.layers import ConvNorm, channels_last, overlapping_pool, per_step, sigmoid_neuron
from ripe_mambaspike.models.peers.spikformer import SpikformerAttention, SpikformerBlock, SpikformerMlp
from ripe_mambaspike.models.registry import register_model

SCALE = 0.125  # of the second stage's attention
TOKEN_THRESHOLD = 0.5


@dataclass(frozen=True)
class QkformerConfig(PeerConfig):
    architecture: ClassVar[str] = "qkformer"

    embed_dim: int = 256  # C, channels of the second stage; the first has half of them
    depths: tuple[int, int] = (1, 1)  # blocks of the stages
    num_heads: int = 16
    mlp_ratio: int = 1  # width of the MLP in multiples of a stage's channels

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_count("embed_dim", "num_heads", "mlp_ratio")
        self._check_counts("depths", 2)
        if self.embed_dim % 16 or self.embed_dim % (2 * self.num_heads):
            self._refuse("embed_dim", f"a multiple of 16 and of twice num_heads {self.num_heads}")


class QkformerConv(nn.Module):
    """Conv3×3 – BN – SN on maps [B, T, C, H, W], with a max pool before the neuron if `pooled`."""

    def __init__(self, in_channels: int, channels: int, pooled: bool) -> None:
        super().__init__()
        self.conv = ConvNorm(in_channels, channels, 3)
        self.pool = overlapping_pool() if pooled else nn.Identity()
        self.neuron = sigmoid_neuron()

    def forward(self, x: Tensor) -> Tensor:
        return self.neuron(per_step(self.pool, self.conv(x)))[0]


class QkformerShortcut(nn.Module):
    """F(x) + SN(BN(Conv1×1(x))) on spikes [B, T, C, H, W]."""

    def __init__(self, layers: nn.Sequential, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.layers = layers
        self.shortcut = ConvNorm(in_channels, channels, stride=stride)
        self.neuron = sigmoid_neuron()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + self.neuron(self.shortcut(x))[0]


class QkformerTokenAttention(nn.Module):
    """QKTA on maps [B, T, C, H, W]; q and k are the halves of one convolution, one norm and one neuron."""

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qk = ConvNorm(channels, 2 * channels)
        self.qk_neuron = sigmoid_neuron()
        self.token_neuron = sigmoid_neuron(TOKEN_THRESHOLD)
        self.proj = ConvNorm(channels, channels, bias=True)
        self.proj_neuron = sigmoid_neuron()

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qk_neuron(self.qk(x))[0].unflatten(2, (2, self.num_heads, -1))
        q, k = heads.unbind(2)  # [B, T, heads, d, H, W]
        passed, _ = self.token_neuron(q.sum(3))
        return self.proj_neuron(self.proj((k * passed.unsqueeze(3)).flatten(2, 3)))[0]


def _first_patches(channels: int) -> nn.Sequential:
    """Events [B, T, 2, H, W] → spikes [B, T, C, ⌈H/8⌉, ⌈W/8⌉]."""
    eighth, quarter, half = (channels // part for part in (8, 4, 2))
    return nn.Sequential(
        QkformerConv(2, eighth, pooled=False),
        QkformerConv(eighth, quarter, pooled=True),
        QkformerShortcut(
            nn.Sequential(QkformerConv(quarter, half, pooled=True), QkformerConv(half, channels, pooled=True)),
            quarter,
            channels,
            stride=4,
        ),
    )


def _second_patches(channels: int) -> nn.Module:
    """Spikes [B, T, C/2, H, W] → [B, T, C, ⌈H/2⌉, ⌈W/2⌉]."""
    layers = nn.Sequential(
        QkformerConv(channels // 2, channels, pooled=False), QkformerConv(channels, channels, pooled=True)
    )
    return QkformerShortcut(layers, channels // 2, channels, stride=2)


@register_architecture(QkformerConfig)
class Qkformer(PeerModel[QkformerConfig]):
    def __init__(self, config: QkformerConfig, name: str) -> None:
        super().__init__(config, name)
        heads, width = config.num_heads, config.embed_dim
        narrow = width // 2

        def mlp(channels: int) -> SpikformerMlp:
            return SpikformerMlp(channels, config.mlp_ratio * channels)

        self.first_patches = _first_patches(narrow)
        self.first_stage = nn.Sequential(
            *(SpikformerBlock(QkformerTokenAttention(narrow, heads), mlp(narrow)) for _ in range(config.depths[0]))
        )
        self.second_patches = _second_patches(width)
        self.second_stage = nn.Sequential(
            *(SpikformerBlock(SpikformerAttention(width, heads, SCALE), mlp(width)) for _ in range(config.depths[1]))
        )
        self.add_head(width)

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → the mean token of every step [B, T, C]."""
        fine = self.first_stage(self.first_patches(channels_last(x)))
        return self.second_stage(self.second_patches(fine)).mean((3, 4))


@register_model("qkformer")
def qkformer() -> ModelConfig:
    return QkformerConfig(num_classes=10)
