"""How often a neuron has fired so far, and how that changes: the bridge's two-channel summary of spikes."""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.shapes import at_least_float32, like_input


class RateState(NamedTuple):
    total: Tensor  # spikes so far [B, C, ...]
    steps: int  # steps so far


def cumulative_rates(spikes: Tensor, initial_state: RateState | None = None) -> tuple[Tensor, RateState]:
    """`r_t = (s_1 + … + s_t)/t` and `δ_t = r_t − r_{t−1}`, stacked: [B, T, C, ...] → [B, T, 2C, ...]."""
    counts = at_least_float32(spikes).cumsum(1)
    seen = 0
    if initial_state is not None:
        counts, seen = counts + initial_state.total.unsqueeze(1), initial_state.steps
    steps = spikes.shape[1]
    time = torch.arange(seen + 1, seen + steps + 1, device=spikes.device, dtype=counts.dtype)
    rate = counts / time.reshape(-1, *([1] * (spikes.ndim - 2)))
    if initial_state is None or seen == 0:
        before = torch.zeros_like(rate[:, :1])
    else:
        before = (initial_state.total / seen).unsqueeze(1)
    change = rate - torch.cat((before, rate[:, :-1]), 1)
    return like_input(torch.cat((rate, change), 2), spikes.dtype), RateState(counts[:, -1], seen + steps)


def windowed_rate(spikes: Tensor, window: int) -> Tensor:
    """The baseline's rate: mean over the last `window` steps, or over those there are. [B, T, ...] → same."""
    counts = at_least_float32(spikes).cumsum(1)
    older = torch.cat((torch.zeros_like(counts[:, :window]), counts[:, :-window]), 1)[:, : counts.shape[1]]
    length = torch.arange(1, spikes.shape[1] + 1, device=spikes.device, dtype=counts.dtype).clamp(max=window)
    return like_input((counts - older) / length.reshape(-1, *([1] * (spikes.ndim - 2))), spikes.dtype)
