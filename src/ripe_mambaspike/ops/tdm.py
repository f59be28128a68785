"""Temporal decoupled modulation: a two-tap filter over time with one coefficient per channel."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.shapes import per_channel


def tdm(x: Tensor, coefficient: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`(1 + λ) x_t − λ x_{t−1}` with x before the first step taken from the state, zeros without one.

    x [B, T, C, ...], coefficient [C], state [B, C, ...] (the last input seen).
    """
    x = x if x.is_floating_point() else x.float()
    filter_weight = per_channel(coefficient, x.ndim - 3)
    now, before = (1 + filter_weight).to(x.dtype), -filter_weight.to(x.dtype)
    if torch.compiler.is_exporting():  # without in-place writes to slices
        return x * now + shift(x, initial_state)[0] * before, x[:, -1]
    out = x * now
    out[:, 1:].addcmul_(x[:, :-1], before)
    if initial_state is not None:
        out[:, 0].addcmul_(initial_state, before)
    return out, x[:, -1]


def shift(x: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x one step later: x_{t−1} at step t, zeros or the state first. x [B, T, ...], state [B, ...]."""
    first = torch.zeros_like(x[:, :1]) if initial_state is None else initial_state.unsqueeze(1).to(x.dtype)
    return torch.cat((first, x[:, :-1]), 1), x[:, -1]
