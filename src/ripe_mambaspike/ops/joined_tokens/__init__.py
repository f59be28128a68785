"""The bridge without materialized rates, for inference: pooled spikes are convolved, then summed over time.

Rates and their changes are linear in the pooled spikes, so a convolution over them is the rate of one convolution of
the spikes plus the change of the rate of another. The two run as one, over half of the channels and twice as wide;
one pass over its outputs sums them and computes everything up to the tokens. Only Triton kernels implement these.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.operator import Operator

Affine = tuple[Tensor, Tensor]


class PooledSpikesInputs(NamedTuple):
    spikes: list[Tensor]
    like: Tensor
    rows: int
    columns: int


class JoinedTokensInputs(NamedTuple):
    convolved: Tensor  # [B, T, P, 2d]
    bias: Tensor  # [d], as all that follow but for `attended`
    weight: Tensor
    shift: Tensor
    attended: Tensor  # [B, T, P, d]
    outer_weight: Tensor
    outer_shift: Tensor


def pooled_spikes(spikes: list[Tensor], like: Tensor, grid: tuple[int, int]) -> Tensor:
    """Spikes of every scale, averaged over the cells of the grid: [B, T, H_i, W_i, C_i] → [B, T, h, w, ΣC_i].

    Cells are those of adaptive average pooling. In the precision of `like`, which is not read.
    """
    out: Tensor = POOLED_SPIKES(PooledSpikesInputs(spikes, like, *grid))
    return out


def paired_kernel(kernel: Tensor, channels: Sequence[int]) -> Tensor:
    """[d, 2ΣC, 3, 3] over rates and changes, scale by scale → [2d, ΣC, 3, 3] over spikes, the rates' outputs first."""
    parts = [part for wide in channels for part in (wide, wide)]
    split = kernel.split(parts, 1)
    return torch.cat([torch.cat(split[0::2], 1), torch.cat(split[1::2], 1)])


def joined_tokens(convolved: Tensor, bias: Tensor, norm: Affine, attended: Tensor, outer: Affine) -> Tensor:
    """`outer(norm(rate(a) + change(rate(b)) + bias) + attended)`, the norms LayerNorms over d: [B, T, P, d], float32.

    convolved: a and b side by side [B, T, P, 2d]; attended [B, T, P, d]; bias and the norms' weights [d], float32.
    """
    inputs = JoinedTokensInputs(convolved.contiguous(), bias, *norm, attended.contiguous(), *outer)
    out: Tensor = JOINED_TOKENS(inputs)
    return out


POOLED_SPIKES = Operator(
    "pooled_spikes",
    PooledSpikesInputs,
    ("pooled",),
    lambda i: i.like.new_empty(*i.spikes[0].shape[:2], i.rows, i.columns, sum(one.shape[-1] for one in i.spikes)),
)
JOINED_TOKENS = Operator(
    "joined_tokens",
    JoinedTokensInputs,
    ("tokens",),
    lambda i: i.attended.new_empty(i.attended.shape, dtype=i.bias.dtype),
)
