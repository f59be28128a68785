"""One spiking stage over the fused operators."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.nn.attention import MembraneAttention
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.fused.layers import BatchLayer, Currents, Layer, coefficient_of, fixed_layer
from ripe_mambaspike.nn.fused.shared import SharedBatchLayer, every_step
from ripe_mambaspike.nn.norm import SharedNorm, TimeBatchNorm
from ripe_mambaspike.nn.stage import SpikingStage
from ripe_mambaspike.ops.backend import computing_in
from ripe_mambaspike.ops.enter_fire import enter_fire
from ripe_mambaspike.ops.membrane_attention import AttentionWeights, attend, attend_fire
from ripe_mambaspike.ops.membrane_attention.reference import convex_attention
from ripe_mambaspike.ops.norm_fire import Neuron, norm_fire, spikes_as
from ripe_mambaspike.ops.operator import grad_proxy_of
from ripe_mambaspike.ops.shapes import at_least_float32


class Spikes(NamedTuple):
    """Spikes [B, T, H, W, C], the way back of their gradient, and the operand of the convolution that reads them."""

    data: Tensor
    grad_proxy: Tensor
    operand: Tensor

    def without_operand(self) -> "Spikes":
        """For whoever reads the spikes alone; the grad_proxy is kept for its precision."""
        return Spikes(self.data, grad_proxy_of(self.grad_proxy), self.data)

    def mean(self) -> Tensor:
        """The firing rate, differentiable, float32."""
        rate: Tensor = _MeanRate.apply(self.data, self.grad_proxy)
        return rate


class StagePlan(NamedTuple):
    """A stage's weights in the form the operators take."""

    first: Callable[[Tensor, ForwardMode], Currents]
    first_neuron: Neuron
    inner_coefficient: Tensor | None  # of the filter before the second convolution
    second: Callable[[Tensor, ForwardMode], Currents]
    second_neuron: Neuron
    attention: Any  # AttentionWeights, or the module where no operator covers it


class StageResult(NamedTuple):
    spikes: Spikes
    rates: list[Tensor]  # of both neurons, where wanted
    attention: Tensor  # A [B, T, H, W, C], empty unless wanted


def plan_stage(stage: SpikingStage, dtype: torch.dtype) -> StagePlan:
    pairs = ((stage.first_conv, stage.first_norm), (stage.second_conv, stage.second_norm))
    layers = [_layer(conv, norm, dtype) for conv, norm in pairs]
    neurons: Any = (stage.first_neuron, stage.second_neuron)
    first, second = (neuron.constants(stage_device(stage)) for neuron in neurons)
    inner = coefficient_of(stage.second_conv)
    return StagePlan(layers[0], first, inner, layers[1], second, plan_attention(stage.attention, dtype))


def stage_device(stage: SpikingStage) -> torch.device:
    return next(stage.parameters()).device


def _layer(conv: Any, norm: Any, dtype: torch.dtype) -> Callable[[Tensor, ForwardMode], Currents]:
    if not (norm.training and isinstance(norm, TimeBatchNorm)):
        return fixed_layer(conv, norm, dtype)
    return (SharedBatchLayer if isinstance(norm, SharedNorm) else BatchLayer)(conv, norm)


def plan_attention(module: Any, dtype: torch.dtype) -> Any:
    """The operator's weights for the network's own attention, the module itself for a variant."""
    if isinstance(module, MembraneAttention) and module.attend is convex_attention:
        factors = [factor for group in module.projections() for factor in group]
        if len(factors) == 3 and all(factor.ndim == 2 for factor in factors):
            query, key, value = (factor.to(dtype) for factor in factors)
            return AttentionWeights(query, key, value, at_least_float32(module.gain))
    return module


class FirstNeuronOutput(NamedTuple):
    """What the first neuron gives."""

    spikes: Spikes
    potential: Tensor  # [B, T, H, W, C]


def run_first_neuron(plan: StagePlan, operand: Tensor, mode: ForwardMode) -> FirstNeuronOutput:
    """The first convolution, norm and neuron: operand [B, T, H, W, C_in], already filtered."""
    current = plan.first(operand, mode)
    grid = current.values.shape
    fired, _ = norm_fire(
        *_flat(current),
        plan.first_neuron,
        plan.inner_coefficient,
        relaxed=mode.relaxed,
        sharpness=mode.sharpness,
    )
    spikes = Spikes(fired.spikes.view(grid), fired.grad_proxy.view(grid), fired.operand.view(grid))
    return FirstNeuronOutput(spikes, fired.potential.view(grid))


def run_first_neuron_from_events(
    plan: StagePlan, x: Tensor, entry: tuple[Tensor, Tensor], coefficient: Tensor | None, mode: ForwardMode
) -> FirstNeuronOutput:
    """The same from events [B, T, 2, H, W] through the entry norm and the filter, without a gradient."""
    assert isinstance(plan.first, Layer)
    steps = x.shape[1]
    scale, shift = entry
    (spikes, potential, operand), _ = enter_fire(
        x,
        (every_step(scale, steps), every_step(shift, steps)),
        coefficient,
        plan.first.kernel,
        (every_step(plan.first.scale, steps), every_step(plan.first.shift, steps)),
        plan.first_neuron,
        plan.inner_coefficient,
        relaxed=mode.relaxed,
        sharpness=mode.sharpness,
    )
    return FirstNeuronOutput(Spikes(spikes, operand, operand), potential)


def run_stage(
    plan: StagePlan,
    first: FirstNeuronOutput,
    next_coefficient: Tensor | None,
    mode: ForwardMode,
    *,
    keep_attention: bool,
    keep_rates: bool,
) -> StageResult:
    """The rest of the stage → spikes filtered for the convolution that comes next.

    Hand `charged` over without keeping it: each tensor is let go once it has been read.
    """
    relaxed, sharpness = mode.relaxed, mode.sharpness
    inner = first.spikes
    grid = inner.data.shape
    spikes, grad_proxy, potential = (t.flatten(2, 3) for t in (inner.data, inner.grad_proxy, first.potential))
    rates = [inner.mean()] if keep_rates else []
    operand = inner.operand
    del first, inner
    current = _flat(plan.second(operand, mode))
    del operand
    if isinstance(plan.attention, AttentionWeights) and not torch.is_grad_enabled():
        (fired, out, attention), _ = attend_fire(
            potential,
            spikes,
            *current,
            plan.attention,
            plan.second_neuron,
            next_coefficient,
            relaxed=relaxed,
            sharpness=sharpness,
            keep_attention=keep_attention,
        )
        outer = Spikes(fired.view(grid), out.view(grid), out.view(grid))
    else:
        if isinstance(plan.attention, AttentionWeights):
            (modulated, attention), _ = attend(potential, spikes, grad_proxy, *current, plan.attention, keep_attention)
        else:
            modulated, attention = _variant(plan.attention, potential, spikes_as(spikes, grad_proxy), current, grid)
        second, _ = norm_fire(
            modulated,
            None,
            None,
            plan.second_neuron,
            next_coefficient,
            relaxed=relaxed,
            sharpness=sharpness,
            keep_potential=False,
        )
        outer = Spikes(second.spikes.view(grid), second.grad_proxy.view(grid), second.operand.view(grid))
    if keep_rates:
        rates.append(outer.mean())
    return StageResult(outer, rates, attention.view(grid) if attention.numel() else attention)


def _flat(current: Currents) -> Currents:
    scale, shift = (every_step(value, current.values.shape[1]) for value in current[1:])
    return Currents(current.values.flatten(2, 3), scale, shift)


def _variant(
    module: Any, potential: Tensor, spikes: Tensor, current: Currents, grid: torch.Size
) -> tuple[Tensor, Tensor]:
    """An attention of the studies by its own module, which wants [B, T, C, H, W]."""
    values, scale, shift = current
    features = (scale[:, None] * values + shift[:, None]).to(values.dtype)
    tensors = (t.view(grid).permute(0, 1, 4, 2, 3) for t in (potential, spikes, features))
    with computing_in(values.dtype, values):
        (out, attention), _ = module(*tensors)
    out, attention = (t.permute(0, 1, 3, 4, 2).flatten(2, 3).to(values.dtype).contiguous() for t in (out, attention))
    return out, attention


class _MeanRate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spikes: Tensor, grad_proxy: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = spikes.shape, grad_proxy.dtype
        total = spikes.sum() if spikes.dtype == torch.uint8 else spikes.sum(dtype=torch.float32)
        return total.to(torch.float32) / spikes.numel()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, (grad / ctx.shape.numel()).to(ctx.dtype).expand(ctx.shape)
