"""The bridge without its rates, for inference: pooled spikes convolved once, what comes out summed over time.

Rates and their changes are linear in the pooled spikes, so a convolution over them is the rate of one convolution of
the spikes plus the change of the rate of another. The two run as one, over half of the channels and twice as wide;
one pass over its outputs sums them and computes everything up to the tokens. Triton kernels alone compute these.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.backend import run
from ripe_mambaspike.ops.pooled_rates.reference import cumulative_rates
from ripe_mambaspike.ops.row_norm import row_norm_reference
from ripe_mambaspike.ops.shapes import at_least_float32

Affine = tuple[Tensor, Tensor]


def pooled_spikes(spikes: list[Tensor], like: Tensor, grid: tuple[int, int]) -> Tensor:
    """Spikes of every scale, averaged over the cells of the grid: [B, T, H_i, W_i, C_i] → [B, T, h, w, ΣC_i].

    Cells are those of adaptive average pooling. In the precision of `like`, which is not read.
    """
    out: Tensor = torch.ops.ripe.pooled_spikes(spikes, like, *grid)
    return out


def pooled_spikes_reference(spikes: list[Tensor], grid: tuple[int, int]) -> Tensor:
    """The same in plain PyTorch, spikes as numbers."""
    flat = [F.adaptive_avg_pool2d(one.permute(0, 1, 4, 2, 3).flatten(0, 1), grid) for one in spikes]
    return torch.cat(flat, 1).unflatten(0, spikes[0].shape[:2]).permute(0, 1, 3, 4, 2)


def paired_kernel(kernel: Tensor, channels: Sequence[int]) -> Tensor:
    """[d, 2ΣC, 3, 3] over rates and changes, scale by scale → [2d, ΣC, 3, 3] over spikes, the rates' outputs first."""
    parts = [part for wide in channels for part in (wide, wide)]
    split = kernel.split(parts, 1)
    return torch.cat([torch.cat(split[0::2], 1), torch.cat(split[1::2], 1)])


def joined_tokens(convolved: Tensor, bias: Tensor, norm: Affine, attended: Tensor, outer: Affine) -> Tensor:
    """`outer(norm(rate(a) + change(rate(b)) + bias) + attended)`, the norms LayerNorms over d: [B, T, P, d], float32.

    convolved: a and b side by side [B, T, P, 2d]; attended [B, T, P, d]; bias and the norms' weights [d], float32.
    """
    out: Tensor = torch.ops.ripe.joined_tokens(convolved.contiguous(), bias, *norm, attended.contiguous(), *outer)
    return out


def joined_tokens_reference(convolved: Tensor, bias: Tensor, norm: Affine, attended: Tensor, outer: Affine) -> Tensor:
    width = len(bias)
    rates = cumulative_rates(at_least_float32(convolved).transpose(2, 3))[0].transpose(2, 3)  # of a, b; changes of both
    mixed = rates[..., :width] + rates[..., 3 * width :] + bias
    return row_norm_reference(row_norm_reference(mixed, *norm, bias.dtype) + attended, *outer, bias.dtype)


@torch.library.custom_op("ripe::pooled_spikes", mutates_args=())
def _pooled_spikes(spikes: list[Tensor], like: Tensor, rows: int, columns: int) -> Tensor:
    out: Tensor = run("joined_tokens", "pooled_spikes", like, spikes, rows, columns)
    return out


@_pooled_spikes.register_fake
def _(spikes: list[Tensor], like: Tensor, rows: int, columns: int) -> Tensor:
    return like.new_empty(*spikes[0].shape[:2], rows, columns, sum(one.shape[-1] for one in spikes))


@torch.library.custom_op("ripe::joined_tokens", mutates_args=())
def _joined_tokens(
    convolved: Tensor,
    bias: Tensor,
    weight: Tensor,
    shift: Tensor,
    attended: Tensor,
    outer_weight: Tensor,
    outer_shift: Tensor,
) -> Tensor:
    vectors = (bias, weight, shift, outer_weight, outer_shift)
    out: Tensor = run("joined_tokens", "joined_tokens", convolved, attended, *vectors)
    return out


@_joined_tokens.register_fake
def _(convolved: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, attended: Tensor, *outer: Tensor) -> Tensor:
    return torch.empty_like(attended, dtype=bias.dtype)
