"""Pooled cumulative rates by the C++ operators, scale by scale into one tensor."""

from itertools import accumulate

import torch
from torch import Tensor

from ripe_mambaspike.ops.cpp.call import call, dense, is_bfloat16
from ripe_mambaspike.ops.norm_fire.cpu import check_in_place
from ripe_mambaspike.ops.pooled_rates import PooledRatesBackwardInputs, PooledRatesInputs, empty_pooled_rates


def pooled_rates(i: PooledRatesInputs) -> tuple[Tensor, list[Tensor]]:
    rates, finals = empty_pooled_rates(i)
    starts = [0, *accumulate(2 * one.shape[-1] for one in i.spikes)]
    steps = dense(i.first_step, torch.int64)
    for index, (one, start) in enumerate(zip(i.spikes, starts, strict=False)):
        numbers = one.dtype != torch.uint8
        spikes = dense(one, rates.dtype if numbers else None)
        count = dense(i.counts[index], torch.float32) if i.counts else None
        grid = (i.rows, i.columns, starts[-1], start)
        final = finals[index] if finals else None
        if i.state_rows is not None:
            check_in_place([i.counts[index]], [count])
            final = count
        state = (count, steps, i.state_rows)
        call("pooled_rates", is_bfloat16(rates), numbers, *one.shape, *grid, spikes, *state, rates, final)
    return rates, finals


def pooled_rates_backward(i: PooledRatesBackwardInputs) -> list[Tensor]:
    """The gradient of each scale's spikes, [B, T, H_i, W_i, C_i]."""
    grad = i.grad.contiguous()
    batch, steps, rows, columns, wide = grad.shape
    starts = [0, *accumulate(2 * count for count in i.channels)]
    grads = []
    for start, channels, height, width in zip(starts, i.channels, i.heights, i.widths, strict=False):
        out = grad.new_empty(batch, steps, height, width, channels)
        call("pooled_rates_backward", is_bfloat16(grad), *out.shape, rows, columns, wide, start, grad, out)
        grads.append(out)
    return grads
