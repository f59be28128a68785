"""MR-S3A, the bridge: spikes of the stages as rates, pooled to the last grid, joined at a fixed token width.

It reads one list of spike tensors [B, T, C_i, H_i, W_i] and the last stage's attention map, and gives tokens
[B, T, N, d], N = H·W of the last grid. No weight here depends on the resolution.
"""

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.modified import find_modification, known
from ripe_mambaspike.nn.norm import BatchNorm, standard_norm
from ripe_mambaspike.nn.repconv import as_plain
from ripe_mambaspike.nn.state import State, Step, below, prefixed
from ripe_mambaspike.nn.tokens import keep_tokens
from ripe_mambaspike.ops.pooled_rates import RateState
from ripe_mambaspike.ops.pooled_rates.reference import cumulative_rates, leaky_rates, pool_to_grid
from ripe_mambaspike.ops.shapes import packed


def rates_on_grid(
    spikes: Tensor,
    grid: tuple[int, int],
    initial_state: State | None = None,
    decay: float | None = None,
    first_step: Step = 0,
) -> tuple[Tensor, State]:
    """Rates and their changes on the given grid: [B, T, C, H, W] → [B, T, 2C, h, w].

    Pooling commutes with both, so it comes first. With `decay` the rates are leaky; the state is that of the rates.
    """
    pooled = pool_to_grid(spikes.flatten(0, 1), grid).unflatten(0, spikes.shape[:2])
    if decay is None:
        count = initial_state["count"] if initial_state else None
        rates, count = cumulative_rates(pooled, count, first_step=first_step)
        return rates, {"count": count}
    before = RateState(initial_state["count"], initial_state["weight"]) if initial_state else None
    rates, left = leaky_rates(pooled, decay, before)
    assert left.weight is not None
    return rates, {"count": left.count, "weight": left.weight}


def _rows(x: Tensor) -> Tensor:
    """x itself; for an export a contiguous copy, so that later operators need no guard on its layout."""
    return packed(x) if torch.compiler.is_exporting() else x


class ScaleMixture(nn.Module):
    """The scales and the weights they are mixed with; a single scale needs no weight."""

    def __init__(self, scales: Iterable[nn.Module]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(scales)
        self.mix = nn.Parameter(torch.ones(len(self.scales))) if len(self.scales) > 1 else None

    def shares(self, like: Tensor) -> Tensor:
        """The softmax of the weights: positive, summing to one."""
        return like.new_ones(1) if self.mix is None else self.mix.softmax(0)


Folded = tuple[Tensor, Tensor, Tensor]  # kernel, scale of its outputs, shift


def folded_kernel(shares: Tensor, scales: Iterable[Folded]) -> tuple[Tensor, Tensor]:
    """Kernel [d, 2ΣC, 3, 3] and bias [d] of one convolution over all scales, norms and mixing weights folded in."""
    kernels, biases = [], []
    for share, (kernel, scale, shift) in zip(shares, scales, strict=True):
        kernels.append(kernel * (share * scale)[:, None, None, None])
        biases.append(share * shift)
    return torch.cat(kernels, 1), torch.stack(biases).sum(0)


def folded_mixture(rates: list[Tensor], shares: Tensor, scales: Iterable[Folded]) -> Tensor:
    """All scales in one convolution."""
    return F.conv2d(torch.cat(rates, 1), *folded_kernel(shares, scales), padding=1)


class RateProjection(nn.Module):
    """A 3×3 convolution without bias and a batch norm."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2 * channels, width, 3, padding=1, bias=False)
        self.norm = BatchNorm(width)

    def forward(self, rates: Tensor, mode: ForwardMode) -> Tensor:
        if rates.dtype == self.conv.weight.dtype or torch.is_autocast_enabled(rates.device.type):
            return self.norm(self.conv(rates), mode)
        return self.norm(F.conv2d(rates, self.conv.weight.to(rates.dtype), padding=1), mode)

    def folded(self) -> Folded:
        """The deployed form: computed in float64, stored in the weights' dtype."""
        scale, shift = (value.to(self.norm.weight.dtype) for value in self.norm.scale_and_shift())
        return self.conv.weight, scale, shift


def _projects(projection: RateProjection) -> bool:
    """Whether `folded` describes its convolution completely."""
    conv = projection.conv
    return as_plain(conv) and (conv.kernel_size, conv.stride, conv.padding) == ((3, 3), (1, 1), (1, 1))


# The projections that a ProjectedMixture can merge into one kernel.
PROJECTIONS = known(
    (nn.ModuleList, RateProjection, nn.Conv2d, BatchNorm), {RateProjection: _projects, BatchNorm: standard_norm}
)


class ProjectedMixture(ScaleMixture):
    """The training form: one projection a scale. Rates [B·T, 2C_i, h, w] → [B·T, d, h, w]."""

    def __init__(self, channels: tuple[int, ...], width: int) -> None:
        super().__init__(RateProjection(c, width) for c in channels)

    def tracks_batches(self) -> bool:
        """Whether its norms use batch statistics."""
        return cast("list[RateProjection]", self.scales)[0].norm.training

    def folded_scales(self) -> list[Folded]:
        return [projection.folded() for projection in cast("list[RateProjection]", self.scales)]

    def forward(self, rates: list[Tensor], mode: ForwardMode = HARD) -> Tensor:
        scales = cast("list[RateProjection]", self.scales)
        shares = self.shares(rates[0])
        if not mode.literal and find_modification(self, self.scales, PROJECTIONS) is None and not self.tracks_batches():
            return folded_mixture(rates, shares, self.folded_scales())
        projected = [projection(r, mode) for projection, r in zip(scales, rates, strict=True)]
        return torch.stack([share * p for share, p in zip(shares, projected, strict=True)]).sum(0)


class FoldedProjection(nn.Module):
    """A projection whose norm has become a scale of its kernel and a bias."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 2 * channels, 3, 3))
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self) -> Folded:
        return self.weight, self.scale, self.shift


class FoldedMixture(ScaleMixture):
    """The deployed form: norms and mixing weights are folded into the kernels, all scales are one convolution."""

    def __init__(self, channels: tuple[int, ...], width: int) -> None:
        super().__init__(FoldedProjection(c, width) for c in channels)

    def folded_scales(self) -> list[Folded]:
        return [scale() for scale in self.scales]

    def forward(self, rates: list[Tensor], mode: ForwardMode = HARD) -> Tensor:
        return folded_mixture(rates, self.shares(rates[0]), self.folded_scales())


class Bridge(nn.Module):
    """Pool to rates, mix the scales, normalize; then, for the positions kept, add the projected attention map."""

    def __init__(self, mixture: ScaleMixture, attention_channels: int, width: int, decay: float | None = None) -> None:
        super().__init__()
        self.mixture = mixture
        self.decay = decay  # of the leaky rates of a causal network; None for cumulative ones
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(attention_channels, width)

    def features(
        self,
        spikes: list[Tensor],
        grid: tuple[int, int],
        mode: ForwardMode = HARD,
        initial_state: State | None = None,
        first_step: Step = 0,
    ) -> tuple[Tensor, State]:
        """The normalized mixture on the last grid, [B, T, N, d] in raster order."""
        rates: list[Tensor] = []
        final: State = {}
        for scale, fired in enumerate(spikes):
            name = f"rates.{scale}"
            rate, left = rates_on_grid(fired, grid, below(initial_state, name), self.decay, first_step)
            rates.append(rate.flatten(0, 1))
            final |= prefixed(name, left)
        features = self.norm(_rows(self.mixture(rates, mode).flatten(2).transpose(1, 2)))
        return features.unflatten(0, spikes[0].shape[:2]), final

    def forward(self, features: Tensor, attention: Tensor, indices: Tensor | None = None) -> Tensor:
        """features [B, T, N, d], attention [B, T, C, h, w], positions kept [B, k] → tokens [B, T, k, d]."""
        attended = _rows(attention.flatten(3).transpose(2, 3))
        return keep_tokens(features, indices) + self.attention(keep_tokens(attended, indices))
