"""One spiking stage over the fused operators."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.nn.attention import MembraneAttention
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.fused.carried import Carried
from ripe_mambaspike.nn.fused.layers import (
    BatchLayer,
    Currents,
    Layer,
    SharedBatchLayer,
    coefficient_of,
    fixed_layer,
)
from ripe_mambaspike.nn.norm import SharedNorm, TimeBatchNorm
from ripe_mambaspike.nn.stage import SpikingStage
from ripe_mambaspike.nn.state import prefixed
from ripe_mambaspike.ops.backend import computing_in
from ripe_mambaspike.ops.enter_fire import EnterFireState, enter_fire
from ripe_mambaspike.ops.membrane_attention import AttendFireState, AttentionWeights, attend, attend_fire
from ripe_mambaspike.ops.membrane_attention.reference import EPSILON, convex_attention
from ripe_mambaspike.ops.norm_fire import Firing, NeuronConstants, norm_fire, spikes_as
from ripe_mambaspike.ops.operator import grad_proxy_of, select_steps
from ripe_mambaspike.ops.shapes import at_least_float32


class Spikes(NamedTuple):
    """Spikes [B, T, H, W, C], the proxy that receives their gradient, and the operand of the next convolution."""

    data: Tensor
    grad_proxy: Tensor
    operand: Tensor

    def without_operand(self) -> "Spikes":
        """For readers of the spikes only; the grad_proxy is kept for its dtype."""
        return Spikes(self.data, grad_proxy_of(self.grad_proxy), self.data)

    def mean(self) -> Tensor:
        """The firing rate, differentiable, float32."""
        rate: Tensor = _MeanRate.apply(self.data, self.grad_proxy)
        return rate


class StagePlan(NamedTuple):
    """A stage's weights as the operators read them."""

    first: Callable[[Tensor, ForwardMode], Currents]
    first_neuron: NeuronConstants
    inner_coefficient: Tensor | None  # of the filter before the second convolution
    second: Callable[[Tensor, ForwardMode], Currents]
    second_neuron: NeuronConstants
    attention: Any  # AttentionWeights, or the module if no operator covers it


class StageResult(NamedTuple):
    spikes: Spikes
    rates: list[Tensor]  # of both neurons, if requested
    attention: Tensor  # A [B, T, H, W, C], empty unless requested
    inner: Tensor  # spikes of the first neuron [B, T, H, W, C]


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
    if isinstance(module, MembraneAttention) and _is_own_attention(module):
        factors = [factor for group in module.projections() for factor in group]
        if len(factors) == 3 and all(factor.ndim == 2 for factor in factors):
            query, key, value = (factor.to(dtype) for factor in factors)
            return AttentionWeights(query, key, value, at_least_float32(module.gain))
    return module


def _is_own_attention(module: MembraneAttention) -> bool:
    """Whether it is DS-MPA with the φ and ε that the operator computes."""
    return module.attend is convex_attention and (module.feature_map, module.epsilon) == ("elu", EPSILON)


class FirstNeuronOutput(NamedTuple):
    """The outputs of the first neuron."""

    spikes: Spikes
    potential: Tensor  # [B, T, H, W, C]


def run_first_neuron(
    plan: StagePlan, operand: Tensor, mode: ForwardMode, carried: Carried, name: str
) -> FirstNeuronOutput:
    """The first convolution, norm and neuron of the stage of this name: operand [B, T, H, W, C_in], filtered."""
    current = plan.first(operand, mode)
    grid = current.values.shape
    neuron, last_spikes = f"{name}.first_neuron", _last_spikes(plan, name)
    fired, left = norm_fire(
        *_flat(current),
        Firing(*plan.first_neuron, plan.inner_coefficient, mode.relaxed, mode.sharpness),
        first_step=carried.first_step,
        initial_state=carried.neuron(neuron, last_spikes, mode.relaxed),
        output_final_state=carried.output_final_state,
    )
    carried.keep_neuron(neuron, last_spikes, left, grid)
    spikes = Spikes(fired.spikes.view(grid), fired.grad_proxy.view(grid), fired.operand.view(grid))
    return FirstNeuronOutput(spikes, fired.potential.view(grid))


def run_first_neuron_from_events(
    plan: StagePlan,
    x: Tensor,
    entry: tuple[Tensor, Tensor],
    coefficient: Tensor | None,
    mode: ForwardMode,
    carried: Carried,
) -> FirstNeuronOutput:
    """The same for the first stage, from events [B, T, 2, H, W] with entry norm and filter; no gradient."""
    assert isinstance(plan.first, Layer)
    neuron, last_input = "stages.0.first_neuron", "stages.0.first_conv.input"
    last_spikes = _last_spikes(plan, "stages.0")
    before = None
    if (fire_state := carried.neuron(neuron, last_spikes, mode.relaxed)) is not None:
        events = None
        if coefficient is not None:
            events = carried.updatable(last_input, at_least_float32(carried.value(last_input)).contiguous())
        before = EnterFireState(events, fire_state)
    (spikes, potential, operand), left = enter_fire(
        x,
        entry,
        coefficient,
        plan.first.kernel,
        (plan.first.scale, plan.first.shift),
        Firing(*plan.first_neuron, plan.inner_coefficient, mode.relaxed, mode.sharpness),
        first_step=carried.first_step,
        initial_state=before,
        output_final_state=carried.output_final_state,
    )
    if left is not None:
        if left.input is not None:
            carried.keep(last_input, left.input)
        carried.keep_neuron(neuron, last_spikes, left.neuron, spikes.shape)
    return FirstNeuronOutput(Spikes(spikes, operand, operand), potential)


def _last_spikes(plan: StagePlan, name: str) -> str | None:
    """The state name of the second convolution's filter; None without a filter."""
    return None if plan.inner_coefficient is None else f"{name}.second_conv.input"


def run_stage(
    plan: StagePlan,
    first: FirstNeuronOutput,
    next_coefficient: Tensor | None,
    mode: ForwardMode,
    carried: Carried,
    level: int,
    *,
    keep_attention: bool,
    keep_rates: bool,
) -> StageResult:
    """The rest of the stage → spikes filtered for the next convolution.

    Pass `first` without keeping a reference to it: each tensor is freed once it has been read.
    """
    neuron, attending = f"stages.{level}.second_neuron", f"stages.{level}.attention"
    last_spikes = None if next_coefficient is None else f"stages.{level + 1}.first_conv.input"
    inner = first.spikes
    grid = inner.data.shape
    spikes, grad_proxy, potential = (t.flatten(2, 3) for t in (inner.data, inner.grad_proxy, first.potential))
    rates = [inner.mean()] if keep_rates else []
    operand, data = inner.operand, inner.data
    del first, inner
    current = _flat(plan.second(operand, mode))
    del operand
    firing = Firing(*plan.second_neuron, next_coefficient, mode.relaxed, mode.sharpness)
    stepping: dict[str, Any] = {"first_step": carried.first_step, "output_final_state": carried.output_final_state}
    before = carried.neuron(neuron, last_spikes, mode.relaxed)
    if isinstance(plan.attention, AttentionWeights) and not torch.is_grad_enabled():
        state = None
        if before is not None:
            state = AttendFireState(carried.spikes(f"{attending}.spikes", mode.relaxed), before)
        (fired, out, attention), left = attend_fire(
            potential,
            spikes,
            current.values,
            current.scale,
            current.shift,
            plan.attention,
            firing,
            keep_attention=keep_attention,
            initial_state=state,
            **stepping,
        )
        if left is not None:
            carried.keep_map(f"{attending}.spikes", left.input_spikes, grid)
            carried.keep_neuron(neuron, last_spikes, left.neuron, grid)
        outer = Spikes(fired.view(grid), out.view(grid), out.view(grid))
    else:
        if isinstance(plan.attention, AttentionWeights):
            (modulated, attention), _ = attend(potential, spikes, grad_proxy, *current, plan.attention, keep_attention)
        else:
            numbers = spikes_as(spikes, grad_proxy)
            modulated, attention = _variant(plan.attention, potential, numbers, current, grid, carried, attending)
        second, after = norm_fire(modulated, None, None, firing, keep_potential=False, initial_state=before, **stepping)
        carried.keep_neuron(neuron, last_spikes, after, grid)
        outer = Spikes(second.spikes.view(grid), second.grad_proxy.view(grid), second.operand.view(grid))
    if keep_rates:
        rates.append(outer.mean())
    return StageResult(outer, rates, attention.view(grid) if attention.numel() else attention, data)


def _flat(current: Currents) -> Currents:
    return Currents(current.values.flatten(2, 3), current.scale, current.shift)


def _variant(
    module: Any, potential: Tensor, spikes: Tensor, current: Currents, grid: torch.Size, carried: Carried, name: str
) -> tuple[Tensor, Tensor]:
    """Run an attention without an operator by its module, which reads [B, T, C, H, W]."""
    values = current.values
    scale, shift = (select_steps(table, carried.first_step, grid[1]) for table in current[1:])
    assert scale is not None
    assert shift is not None
    features = (scale.unsqueeze(-2) * values + shift.unsqueeze(-2)).to(values.dtype)
    tensors = (t.view(grid).permute(0, 1, 4, 2, 3) for t in (potential, spikes, features))
    with computing_in(values.dtype, values):
        (out, attention), left = module(*tensors, initial_state=carried.part(name))
    if carried.wanted:
        for key, value in prefixed(name, left).items():
            carried.keep(key, value)
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
