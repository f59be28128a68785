"""Pooled cumulative rates by the C++ operators, scale by scale into one tensor."""

from itertools import accumulate

import torch
from torch import Tensor

from ripe_mambaspike.ops.cpp.call import call, is_bfloat16


def pooled_rates(carrier: Tensor, spikes: list[Tensor], rows: int, columns: int) -> Tensor:
    """[B, T, H_i, W_i, C_i] → [B, T, rows, columns, 2 ΣC_i] in the carrier's precision."""
    ends = list(accumulate(2 * one.shape[-1] for one in spikes))
    pooled = carrier.new_empty(*spikes[0].shape[:2], rows, columns, ends[-1])
    for one, start in zip(spikes, [0, *ends], strict=False):
        numbers = one.dtype != torch.uint8
        given = (one.to(pooled.dtype) if numbers else one).contiguous()
        grid = (rows, columns, ends[-1], start)
        call("pooled_rates", is_bfloat16(pooled), numbers, *one.shape, *grid, given, pooled)
    return pooled


def pooled_rates_backward(grad: Tensor, channels: list[int], heights: list[int], widths: list[int]) -> list[Tensor]:
    """The gradient of each scale's spikes, [B, T, H_i, W_i, C_i]."""
    grad = grad.contiguous()
    batch, steps, rows, columns, wide = grad.shape
    starts = [0, *accumulate(2 * count for count in channels)]
    grads = []
    for start, count, height, width in zip(starts, channels, heights, widths, strict=False):
        out = grad.new_empty(batch, steps, height, width, count)
        call("pooled_rates_backward", is_bfloat16(grad), *out.shape, rows, columns, wide, start, grad, out)
        grads.append(out)
    return grads
