"""The bridge over the fused operators: pooled rates of all scales, one convolution, tokens."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.nn.bridge import Bridge, ProjectedMixture, folded_kernel
from ripe_mambaspike.nn.fast.layers import channels_together, convolve
from ripe_mambaspike.nn.fast.stage import Spikes
from ripe_mambaspike.nn.forward_pass import Pass
from ripe_mambaspike.nn.tokens import keep_tokens
from ripe_mambaspike.ops.fused import pooled_rates, row_norm
from ripe_mambaspike.ops.shapes import at_least_float32


class BridgePlan(NamedTuple):
    kernel: Tensor | None  # of all scales [d, 2ΣC, 3, 3]; None where batch statistics decide
    bias: Tensor | None
    mixture: Any  # the module, for batch statistics
    norm: tuple[Tensor, Tensor]  # weight and bias [d], float32
    attention: tuple[Tensor, Tensor]  # weight [d, C], bias [d]


def plan_bridge(bridge: Bridge, dtype: torch.dtype) -> BridgePlan:
    mixture: Any = bridge.mixture
    kernel = bias = None
    if not (isinstance(mixture, ProjectedMixture) and mixture.tracks_batches()):
        kernel, bias = folded_kernel(mixture.shares(bridge.norm.weight), mixture.folded_scales())
        kernel, bias = channels_together(kernel, dtype), bias.to(dtype)
    norm = (at_least_float32(bridge.norm.weight), at_least_float32(bridge.norm.bias))
    attention = (bridge.attention.weight.to(dtype), bridge.attention.bias.to(dtype))
    return BridgePlan(kernel, bias, mixture, norm, attention)


def bridge_tokens(
    plan: BridgePlan, spikes: list[Spikes], attention: Tensor, indices: Tensor | None, mode: Pass
) -> Tensor:
    """Spikes of the scales and the last attention map [B, T, h, w, C] → tokens [B, T, k, d], float32."""
    grid = (attention.shape[2], attention.shape[3])
    rates = pooled_rates([s.data for s in spikes], [s.carrier for s in spikes], grid)
    if plan.kernel is not None:
        mixed = convolve(rates, plan.kernel, 1, plan.bias)
    else:
        widths = [2 * s.data.shape[-1] for s in spikes]
        flat = [part.permute(0, 3, 1, 2) for part in rates.flatten(0, 1).split(widths, -1)]
        mixed = plan.mixture(flat, mode).permute(0, 2, 3, 1).unflatten(0, rates.shape[:2])
    features = row_norm(mixed.flatten(2, 3), *plan.norm, plan.norm[0].dtype)
    attended = F.linear(keep_tokens(attention.flatten(2, 3), indices), *plan.attention)
    return keep_tokens(features, indices) + attended
