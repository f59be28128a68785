"""One spiking stage over the fused operators."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.nn.attention import MembraneAttention
from ripe_mambaspike.nn.fast.layers import Currents, batch_currents, branch_currents, fixed_layer
from ripe_mambaspike.nn.forward_pass import Pass
from ripe_mambaspike.nn.stage import SpikingStage
from ripe_mambaspike.ops.attention import convex_attention
from ripe_mambaspike.ops.fused import Neuron, attend, attend_fire, norm_fire, spikes_as
from ripe_mambaspike.ops.fused.attention import AttentionWeights
from ripe_mambaspike.ops.fused.neurons import Fired
from ripe_mambaspike.ops.shapes import at_least_float32


class Spikes(NamedTuple):
    """Spikes [B, T, H, W, C], the way back of their gradient, and the operand of the convolution that reads them."""

    data: Tensor
    carrier: Tensor
    operand: Tensor

    def mean(self) -> Tensor:
        """The firing rate, differentiable, float32."""
        rate: Tensor = _MeanRate.apply(self.data, self.carrier)
        return rate


class StagePlan(NamedTuple):
    """A stage's weights in the form the operators take."""

    first: Callable[[Tensor], Currents]
    first_neuron: Neuron
    inner_coefficient: Tensor | None  # of the filter before the second convolution
    second: Callable[[Tensor], Currents]
    second_neuron: Neuron
    attention: Any  # AttentionWeights, or the module where no operator covers it


class StageResult(NamedTuple):
    spikes: Spikes
    inner: Spikes
    attention: Tensor  # A [B, T, H, W, C], empty unless wanted


def plan_stage(stage: SpikingStage, mode: Pass, dtype: torch.dtype, moments: bool) -> StagePlan:
    """With `moments` branch statistics in training come from the patches' moments, else from each branch."""
    layers = []
    for conv, norm in ((stage.first_conv, stage.first_norm), (stage.second_conv, stage.second_norm)):
        layers.append(_layer(conv, norm, mode, dtype, moments))
    neurons: Any = (stage.first_neuron, stage.second_neuron)
    first, second = (neuron.constants(stage_device(stage)) for neuron in neurons)
    inner: Any = stage.second_conv.coefficient
    return StagePlan(layers[0], first, inner, layers[1], second, plan_attention(stage.attention, dtype))


def stage_device(stage: SpikingStage) -> torch.device:
    return next(stage.parameters()).device


def _layer(conv: Any, norm: Any, mode: Pass, dtype: torch.dtype, moments: bool) -> Callable[[Tensor], Currents]:
    if not norm.training or not hasattr(norm, "running_mean"):
        return fixed_layer(conv, norm, dtype)
    currents = batch_currents if moments else branch_currents
    return lambda operand: currents(conv, norm, operand, mode)


def plan_attention(module: Any, dtype: torch.dtype) -> Any:
    """The operator's weights for the network's own attention, the module itself for a variant."""
    if isinstance(module, MembraneAttention) and module.attend is convex_attention:
        factors = [factor for group in module.projections() for factor in group]
        if len(factors) == 3 and all(factor.ndim == 2 for factor in factors):
            query, key, value = (factor.to(dtype) for factor in factors)
            return AttentionWeights(query, key, value, at_least_float32(module.gain))
    return module


def run_stage(
    plan: StagePlan, operand: Tensor, next_coefficient: Tensor | None, mode: Pass, keep_attention: bool
) -> StageResult:
    """operand [B, T, H, W, C_in], already filtered → spikes filtered for the convolution that comes next."""
    relaxed, sharpness = mode.relaxed, mode.sharpness
    current = plan.first(operand)
    grid = current.values.shape
    values, scale, shift = _flat(current)
    fired = norm_fire(
        values, scale, shift, plan.first_neuron, plan.inner_coefficient, relaxed=relaxed, sharpness=sharpness
    )
    inner = Spikes(fired.spikes.view(grid), fired.carrier.view(grid), fired.operand.view(grid))
    current = _flat(plan.second(inner.operand))
    if isinstance(plan.attention, AttentionWeights) and not torch.is_grad_enabled():
        spikes, out, attention = attend_fire(
            fired.potential,
            fired.spikes,
            *current,
            plan.attention,
            plan.second_neuron,
            next_coefficient,
            relaxed=relaxed,
            sharpness=sharpness,
            keep_attention=keep_attention,
        )
        outer = Spikes(spikes.view(grid), out.view(grid), out.view(grid))
    else:
        if isinstance(plan.attention, AttentionWeights):
            given = (fired.potential, fired.spikes, fired.carrier)
            modulated, attention = attend(*given, *current, plan.attention, keep_attention)
        else:
            modulated, attention = _variant(plan.attention, fired, current, grid)
        second = norm_fire(
            modulated,
            None,
            None,
            plan.second_neuron,
            next_coefficient,
            relaxed=relaxed,
            sharpness=sharpness,
            keep_potential=False,
        )
        outer = Spikes(second.spikes.view(grid), second.carrier.view(grid), second.operand.view(grid))
    return StageResult(outer, inner, attention.view(grid) if attention.numel() else attention)


def _flat(current: Currents) -> Currents:
    return Currents(current.values.flatten(2, 3), current.scale, current.shift)


def _variant(module: Any, fired: Fired, current: Currents, grid: torch.Size) -> tuple[Tensor, Tensor]:
    """An attention of the studies by its own module, which wants [B, T, C, H, W]."""
    values, scale, shift = current
    features = (scale[:, None] * values + shift[:, None]).to(values.dtype)
    spikes = spikes_as(fired.spikes, fired.carrier)
    tensors = (t.view(grid).permute(0, 1, 4, 2, 3) for t in (fired.potential, spikes, features))
    (out, attention), _ = module(*tensors)
    out, attention = (t.permute(0, 1, 3, 4, 2).flatten(2, 3).to(values.dtype).contiguous() for t in (out, attention))
    return out, attention


class _MeanRate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spikes: Tensor, carrier: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = spikes.shape, carrier.dtype
        total = spikes.sum() if spikes.dtype == torch.uint8 else spikes.sum(dtype=torch.float32)
        return total.to(torch.float32) / spikes.numel()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, (grad / ctx.shape.numel()).to(ctx.dtype).expand(ctx.shape)
