"""The bridge over the fused operators: pooled rates of all scales, one convolution, tokens.

Without a gradient, Triton kernels use a shorter path: pool the spikes, convolve, then compute rates of the outputs.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.nn.bridge import Bridge, ProjectedMixture, folded_kernel
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.fused.carried import Carried
from ripe_mambaspike.nn.fused.layers import channels_together
from ripe_mambaspike.nn.fused.stage import Spikes
from ripe_mambaspike.nn.norm import norm_affine
from ripe_mambaspike.nn.tokens import keep_tokens
from ripe_mambaspike.ops.backend import backend
from ripe_mambaspike.ops.convolve import convolve
from ripe_mambaspike.ops.joined_tokens import Affine, joined_tokens, paired_kernel, pooled_spikes
from ripe_mambaspike.ops.pooled_rates import RateState, pooled_rates
from ripe_mambaspike.ops.row_norm import row_norm
from ripe_mambaspike.ops.shapes import at_least_float32
from ripe_mambaspike.ops.winograd import winograd_weights


class BridgePlan(NamedTuple):
    kernel: Tensor | None  # of all scales [d, 2ΣC, 3, 3]; None with batch statistics
    bias: Tensor | None
    mixture: Any  # the module, for batch statistics
    norm: Affine  # weight and bias [d], float32
    attention: Affine  # weight [d, C], bias [d]
    paired: Affine | None  # the kernel over spikes [2d, ΣC, 3, 3], bias [d] float32; None if that path is not used
    keep: float | None  # of leaky rates; None for cumulative ones
    winograd: Tensor | None = None  # the kernel transformed for Winograd's convolution, if used


class UnnormedTokens(NamedTuple):
    """Tokens of all positions before the final summation, which is fused with the LayerNorm that follows."""

    convolved: Tensor  # [B, T, N, 2d]
    bias: Tensor  # [d]
    norm: Affine
    attended: Tensor  # [B, T, N, d]

    def normed(self, following: Affine) -> Tensor:
        """The tokens after the LayerNorm that follows [B, T, N, d], float32."""
        return joined_tokens(*self, following)


def plan_bridge(bridge: Bridge, dtype: torch.dtype) -> BridgePlan:
    mixture: Any = bridge.mixture
    kernel = bias = paired = winograd = None
    if not (isinstance(mixture, ProjectedMixture) and mixture.tracks_batches()):
        scales = mixture.folded_scales()
        kernel, bias = folded_kernel(mixture.shares(bridge.norm.weight), scales)
        if _over_spikes(kernel, dtype) and bridge.decay is None:
            channels = [weight.shape[1] // 2 for weight, _, _ in scales]
            paired = channels_together(paired_kernel(kernel, channels), dtype), at_least_float32(bias)
        kernel, bias = channels_together(kernel, dtype), bias.to(dtype)
        winograd = winograd_weights(kernel)
    attention = (bridge.attention.weight.to(dtype), bridge.attention.bias.to(dtype))
    return BridgePlan(kernel, bias, mixture, norm_affine(bridge.norm), attention, paired, bridge.decay, winograd)


def _over_spikes(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether the convolution runs over spikes and its outputs are summed, instead of over summed spikes."""
    return not torch.is_grad_enabled() and backend(x, dtype) == "triton"


def bridge_tokens(
    plan: BridgePlan,
    spikes: list[Spikes],
    attention: Tensor,
    indices: Tensor | None,
    mode: ForwardMode,
    carried: Carried,
) -> Tensor | UnnormedTokens:
    """Spikes of the scales and the last attention map [B, T, h, w, C] → tokens [B, T, k, d], float32."""
    whole = indices is None and not carried.wanted and not carried.initial
    if plan.paired is not None and whole and _over_spikes(attention, attention.dtype):
        kernel, shift = plan.paired
        grid = (attention.shape[2], attention.shape[3])
        convolved = convolve(pooled_spikes([s.data for s in spikes], spikes[0].grad_proxy, grid), kernel)
        attended = F.linear(attention.flatten(2, 3), *plan.attention)
        return UnnormedTokens(convolved.flatten(2, 3), shift, plan.norm, attended)
    return join_tokens(plan, bridge_features(plan, spikes, attention.shape, mode, carried), attention, indices)


def bridge_features(
    plan: BridgePlan, spikes: list[Spikes], grid: torch.Size, mode: ForwardMode, carried: Carried
) -> Tensor:
    """The normalized mixture of the scales' rates on the last grid [B, T, h, w, C] → [B, T, N, d], float32."""
    names = [f"bridge.rates.{scale}" for scale in range(len(spikes))]
    before = [_rate_state(carried, name) for name in names] if carried.initial else None
    rates, left = pooled_rates(
        [s.data for s in spikes],
        [s.grad_proxy for s in spikes],
        (grid[2], grid[3]),
        keep=plan.keep,
        first_step=carried.first_step,
        initial_state=before,
        output_final_state=carried.output_final_state,
    )
    for name, state in zip(names, left or [], strict=bool(left)):
        carried.keep(f"{name}.count", state.count.permute(0, 3, 1, 2))
        if state.weight is not None:
            carried.keep(f"{name}.weight", state.weight)
    if plan.kernel is not None:
        mixed = convolve(rates, plan.kernel, 1, plan.bias, plan.winograd)
    else:
        widths = [2 * s.data.shape[-1] for s in spikes]
        flat = [part.permute(0, 3, 1, 2) for part in rates.flatten(0, 1).split(widths, -1)]
        mixed = plan.mixture(flat, mode).permute(0, 2, 3, 1).unflatten(0, rates.shape[:2])
    return row_norm(mixed.flatten(2, 3), *plan.norm, plan.norm[0].dtype)


def join_tokens(plan: BridgePlan, features: Tensor, attention: Tensor, indices: Tensor | None) -> Tensor:
    """Features [B, T, N, d] and the projected attention map [B, T, h, w, C] at the positions kept → [B, T, k, d]."""
    attended = F.linear(keep_tokens(attention.flatten(2, 3), indices), *plan.attention)
    return keep_tokens(features, indices) + attended


def _rate_state(carried: Carried, name: str) -> RateState:
    weight, counted = f"{name}.weight", f"{name}.count"
    count = carried.updatable(counted, carried.value(counted).permute(0, 2, 3, 1).contiguous())
    return RateState(count, carried.value(weight) if weight in carried.initial else None, carried.operator_rows)
