"""Spikes of all scales as pooled leaky rates on one grid, for causal networks.

Pooling is the operator's, which gives a step on its own back as its rate; what fades is plain PyTorch, over maps that
are small by then.
"""

import torch
from torch import Tensor

from ripe_mambaspike.ops.pooled_rates import pooled_rates
from ripe_mambaspike.ops.pooled_rates.reference import leaky_rates
from ripe_mambaspike.ops.shapes import at_least_float32


def pooled_leaky_rates(spikes: list[Tensor], carriers: list[Tensor], grid: tuple[int, int], keep: float) -> Tensor:
    """Leaky rates and their changes of every scale on the grid: [B, T, H_i, W_i, C_i] → [B, T, h, w, 2 ΣC_i].

    Channels, cells and precision are those of `pooled_rates`.
    """
    alone = [[one.flatten(0, 1).unsqueeze(1) for one in group] for group in (spikes, carriers)]
    pooled = pooled_rates(alone[0], alone[1], grid).squeeze(1).unflatten(0, spikes[0].shape[:2])
    parts = []
    for part in pooled.split([2 * one.shape[-1] for one in spikes], -1):
        now = at_least_float32(part.chunk(2, -1)[0])  # of a step on its own the change is the rate again
        parts.append(leaky_rates(now, keep, dim=-1)[0])
    return torch.cat(parts, -1).to(pooled.dtype)
