"""Mamba-Spike, the baseline: a recurrent spiking encoder, a dense projection of its whole map, a Mamba stack."""

from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.base import Model, Output, register_architecture
from ripe_mambaspike.models.config import MambaSpikeConfig
from ripe_mambaspike.models.input_checks import check_input, nan_where_not_finite
from ripe_mambaspike.nn.fused.coverage import layer_norm
from ripe_mambaspike.nn.fused.hierarchy import run_block
from ripe_mambaspike.nn.hierarchy import linear_head
from ripe_mambaspike.nn.mamba import CausalConv1d, Mamba, plan_block
from ripe_mambaspike.nn.modified import Modification, find_modification, known
from ripe_mambaspike.ops.backend import backend, log_once, precision
from ripe_mambaspike.ops.neurons import recurrent_leaky_step
from ripe_mambaspike.ops.pooled_rates.reference import windowed_rate
from ripe_mambaspike.ops.spikes import firing_rate

DECAY = 0.97


class RecurrentSpikingConv(nn.Module):
    """A 3×3 convolution, a pool, and a leaky neuron that also reads its own last spikes through a 1×1 kernel."""

    def __init__(self, in_channels: int, channels: int, pool: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1)
        self.recurrent = nn.Conv2d(channels, channels, 1)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C_in, H, W] → spikes [B, T, C, H / pool, W / pool]."""
        drive = self.conv(x.flatten(0, 1))
        if self.pool > 1:
            drive = F.max_pool2d(drive, self.pool)
        drive = drive.unflatten(0, x.shape[:2])
        spike = potential = torch.zeros_like(drive[:, 0])
        spikes = []
        for drive_t in drive.unbind(1):
            spike, potential = recurrent_leaky_step(drive_t + self.recurrent(spike), potential, DECAY)
            spikes.append(spike)
        return torch.stack(spikes, 1)


class PreNormMamba(nn.Module):
    """`x + Mamba(LayerNorm x)`."""

    def __init__(self, width: int, conv_bias: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mamba = Mamba(width, conv_bias=conv_bias)

    def forward(self, x: Tensor) -> Tensor:
        dtype = precision(x)
        if backend(x, dtype) is None or self._altered():
            return x + self.mamba(self.norm(x))[0]
        with torch.autocast(x.device.type, enabled=False):
            return x + run_block(plan_block(self.norm, (self.mamba,), None, dtype), x)

    def _altered(self) -> bool:
        found = find_modification(self, (self.norm, self.mamba), _TABLE)
        if found is not None:
            log_once(f"{found} in a Mamba block; using the reference path")
        return found is not None


@register_architecture(MambaSpikeConfig)
class MambaSpike(Model):
    """Its head reads the mean over the steps, so the logits have a single step: [B, 1, classes]."""

    config: MambaSpikeConfig
    answers_once = True

    def __init__(self, config: MambaSpikeConfig, name: str) -> None:
        super().__init__(config, name)
        widths = (2, *config.channels)
        height, width = config.grid()
        self.encoder = nn.ModuleList(
            RecurrentSpikingConv(before, after, pool)
            for before, after, pool in zip(widths, widths[1:], (2, 2, 1), strict=False)
        )
        self.input_proj = nn.Linear(config.channels[-1] * height * width, config.embed_dim)
        self.blocks = nn.ModuleList(PreNormMamba(config.embed_dim, config.conv_bias) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.embed_dim)
        self.head = linear_head(config.embed_dim, config.num_classes)

    @property
    def num_features(self) -> int:
        return self.config.embed_dim

    def forward(self, x: Tensor) -> Tensor:
        """Events binned to [B, T, 2, H, W] → logits [B, 1, num_classes]."""
        return self.run(x).logits

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → a token for every step [B, T, d]."""
        return self._tokens(self._encode(x)[-1])

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Mean over the steps, LayerNorm and the head: [B, T, d] → [B, 1, num_classes]."""
        pooled = self.norm(tokens.mean(1, keepdim=True))
        return pooled if pre_logits else self.head(pooled)

    def check(self, x: Tensor) -> None:
        """Raise unless this network can read x; without pooling, its projection supports one resolution only."""
        check_input(x, self.config.time_steps, self.dtype, training=self.training)
        if self.config.pool_size is None and tuple(x.shape[3:]) != self.config.in_size:
            given, wanted = ("×".join(map(str, size)) for size in (x.shape[3:], self.config.in_size))
            raise InputError.expected("x", f"{wanted}, the input size of the projection", given)

    def run(self, x: Tensor, observe: Collection[str] = ()) -> Output:
        """A pass with all its outputs; only "spikes" can be observed."""
        if unknown := [name for name in observe if name != "spikes"]:
            raise ConfigError.expected("observe", "'spikes' for Mamba-Spike", repr(unknown[0]))
        spikes = self._encode(x)
        rates = torch.stack([firing_rate(layer) for layer in spikes])
        logits = self.forward_head(self._tokens(spikes[-1]))
        observed = {f"encoder.{index}.spikes": layer for index, layer in enumerate(spikes)} if observe else {}
        return Output(nan_where_not_finite(logits, x), rates, observed=observed)

    def num_spiking_layers(self) -> int:
        return len(self.encoder)

    def _encode(self, x: Tensor) -> list[Tensor]:
        """The spikes of every layer of the encoder."""
        self.check(x)
        spikes = []
        for layer in self.encoder:
            x = layer(x)
            spikes.append(x)
        return spikes

    def _tokens(self, spikes: Tensor) -> Tensor:
        x = windowed_rate(spikes, self.config.rate_window)
        if self.config.pool_size is not None:
            x = F.adaptive_avg_pool2d(x.flatten(0, 1), self.config.pool_size).unflatten(0, x.shape[:2])
        tokens = self.input_proj(x.flatten(2))
        for block in self.blocks:
            tokens = block(tokens)
        return tokens

    def modification(self) -> Modification | None:
        return find_modification(self, self.children(), _TABLE)

    def parts(self) -> dict[str, nn.Module]:
        tail = nn.ModuleList((self.norm, self.head))
        return {"encoder": self.encoder, "input_proj": self.input_proj, "blocks": self.blocks, "head": tail}


MambaSpike.package_methods = {"forward": MambaSpike.forward}
_TABLE = known(
    (
        nn.ModuleList,
        nn.Conv2d,
        nn.Linear,
        nn.LayerNorm,
        CausalConv1d,
        Mamba,
        PreNormMamba,
        RecurrentSpikingConv,
        nn.Identity,
    ),
    {nn.LayerNorm: layer_norm},
)
