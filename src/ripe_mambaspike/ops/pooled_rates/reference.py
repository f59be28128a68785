"""How often a neuron has fired so far, and how that changes: the bridge's two-channel summary of spikes."""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.shapes import at_least_float32, like_input


class RateState(NamedTuple):
    total: Tensor  # spikes so far [B, C, ...]
    steps: int | Tensor  # steps so far, for all rows or for each [B]


def cumulative_rates(spikes: Tensor, initial_state: RateState | None = None) -> tuple[Tensor, RateState]:
    """`r_t = (s_1 + … + s_t)/t` and `δ_t = r_t − r_{t−1}`, stacked: [B, T, C, ...] → [B, T, 2C, ...]."""
    counts = at_least_float32(spikes).cumsum(1)
    seen: int | Tensor = 0
    if initial_state is not None:
        counts, seen = counts + initial_state.total.unsqueeze(1), initial_state.steps
    steps, trailing = spikes.shape[1], [1] * (spikes.ndim - 2)
    since = torch.arange(1, steps + 1, device=spikes.device)
    time = seen + since if isinstance(seen, int) else seen.unsqueeze(1) + since
    rate = counts / time.to(counts.dtype).reshape(*time.shape, *trailing)
    if initial_state is None or (isinstance(seen, int) and seen == 0):
        before = torch.zeros_like(rate[:, :1])
    elif isinstance(seen, int):
        before = (initial_state.total / seen).unsqueeze(1)
    else:
        length = seen.reshape(-1, 1, *trailing)
        mean = initial_state.total.unsqueeze(1) / length.clamp(min=1).to(counts.dtype)
        before = torch.where(length > 0, mean, torch.zeros_like(mean))
    change = rate - torch.cat((before, rate[:, :-1]), 1)
    return like_input(torch.cat((rate, change), 2), spikes.dtype), RateState(counts[:, -1], seen + steps)


class LeakyState(NamedTuple):
    """Of the same size however many steps there were."""

    total: Tensor  # faded sum of the spikes so far [B, ...]
    weight: float | Tensor  # faded count of the steps so far, for all rows or for each [B]


def leaky_rates(
    spikes: Tensor, keep: float, initial_state: LeakyState | None = None, *, dim: int = 2
) -> tuple[Tensor, LeakyState]:
    """`r_t = Σ_k keep^(t−k) s_k / Σ_k keep^(t−k)` and `δ_t = r_t − r_{t−1}`, stacked in `dim`: [B, T, C, ...] → 2C.

    The mean of all steps so far, older ones counting less. The weights always sum to one, so nothing is underrated at
    the start; keep = 1 is `cumulative_rates`. Step by step, so that pieces equal the whole to the bit.
    """
    wide = at_least_float32(spikes)
    total, weight = initial_state or LeakyState(torch.zeros_like(wide[:, 0]), 0.0)
    if isinstance(weight, Tensor):
        rate = torch.where(_as_rows(weight, total) > 0, total / _as_rows(weight, total), total)
    else:
        rate = total / weight if weight else total
    rates, changes = [], []
    for now in wide.unbind(1):
        before = rate
        total, weight = torch.add(now, total, alpha=keep), keep * weight + 1
        rate = total / (_as_rows(weight, total) if isinstance(weight, Tensor) else weight)
        rates.append(rate)
        changes.append(rate - before)
    both = torch.cat((torch.stack(rates, 1), torch.stack(changes, 1)), dim)
    return like_input(both, spikes.dtype), LeakyState(total, weight)


def _as_rows(values: Tensor, like: Tensor) -> Tensor:
    """values [B] as [B, 1, ...] in the precision of another tensor."""
    return values.to(like.dtype).reshape(-1, *([1] * (like.ndim - 1)))


def windowed_rate(spikes: Tensor, window: int) -> Tensor:
    """The baseline's rate: mean over the last `window` steps, or over those there are. [B, T, ...] → same."""
    counts = at_least_float32(spikes).cumsum(1)
    older = torch.cat((torch.zeros_like(counts[:, :window]), counts[:, :-window]), 1)[:, : counts.shape[1]]
    length = torch.arange(1, spikes.shape[1] + 1, device=spikes.device, dtype=counts.dtype).clamp(max=window)
    return like_input((counts - older) / length.reshape(-1, *([1] * (spikes.ndim - 2))), spikes.dtype)
