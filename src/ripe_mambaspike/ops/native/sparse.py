"""The accumulate-only convolution in C++."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.native.calling import call, dense

LANES = 16
MOST = 128  # output channels summed together


def accumulate_conv(
    spikes: Tensor, weight_now: Tensor, weight_before: Tensor | None, bias: Tensor | None, stride: int
) -> tuple[Tensor, int]:
    """spikes [B, T, H, W, Cin] → (out [B, T, H', W', C] float32, additions); see `ops/sparse_conv.py`."""
    batch, steps, height, width = spikes.shape[:4]
    table, channels = arranged(weight_now, weight_before), weight_now.shape[0]
    shape = (batch, steps, (height - 1) // stride + 1, (width - 1) // stride + 1, channels)
    out = torch.empty(shape, dtype=torch.float32)
    result = torch.zeros(2, dtype=torch.int64)
    sizes = torch.tensor([*spikes.shape, channels, stride, table.shape[4]])
    dual = weight_before is not None
    call("accumulate_conv", sizes, dual, dense(spikes), table, dense(bias, torch.float32), out, result)
    additions, wrong = result.tolist()
    if wrong:
        raise InputError("spikes hold a byte above 1; 0 or 1 is wanted")
    return out, additions


def arranged(weight_now: Tensor, weight_before: Tensor | None) -> Tensor:
    """The table of weight rows [blocks, 6 or 3, 3, Cin, block]: by row of taps (now, then before), tap, input channel.

    The kernel for the step before is subtracted, so its sign is turned. A block is a part of the output channels, a
    whole number of vectors; zeros fill up the last one.
    """
    channels = weight_now.shape[0]
    vectors = -(-channels // LANES)
    blocks = -(-vectors * LANES // MOST)
    block = -(-vectors // blocks) * LANES
    both = [weight_now] if weight_before is None else [weight_now, -weight_before]
    rows = torch.cat([weight.detach().float().permute(2, 3, 1, 0) for weight in both])
    return F.pad(rows, (0, blocks * block - channels)).unflatten(3, (blocks, block)).movedim(3, 0).contiguous()
