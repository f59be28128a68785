"""The bridge's last steps in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.joined_tokens import JoinedTokensInputs, PooledSpikesInputs
from ripe_mambaspike.ops.pooled_rates.reference import cumulative_rates
from ripe_mambaspike.ops.row_norm import RowNormInputs
from ripe_mambaspike.ops.row_norm.reference import row_norm
from ripe_mambaspike.ops.shapes import at_least_float32


def pooled_spikes(i: PooledSpikesInputs) -> Tensor:
    images = (one.to(i.like.dtype).permute(0, 1, 4, 2, 3).flatten(0, 1) for one in i.spikes)
    pooled = torch.cat([F.adaptive_avg_pool2d(one, (i.rows, i.columns)) for one in images], 1)
    return pooled.unflatten(0, i.spikes[0].shape[:2]).permute(0, 1, 3, 4, 2)


def joined_tokens(i: JoinedTokensInputs) -> Tensor:
    width, dtype = len(i.bias), i.bias.dtype
    rates = cumulative_rates(at_least_float32(i.convolved).transpose(2, 3))[0].transpose(2, 3)
    mixed = rates[..., :width] + rates[..., 3 * width :] + i.bias  # rates of a and b, then their changes
    inner = row_norm(RowNormInputs(mixed, i.weight, i.shift, dtype))
    return row_norm(RowNormInputs(inner + i.attended, i.outer_weight, i.outer_shift, dtype))
