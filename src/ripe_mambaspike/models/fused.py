"""A whole RIPE-MambaSpike over the fused operators.

`plan` puts the weights into the operators' form; `run_plan` computes with it. A deployed network's plan can be kept
and used for every clip; a network in training is planned anew for each pass, and gradients flow through the plan.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ripe_mambaspike.models.base import Output
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.input_checks import nan_where_not_finite
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.fused.bridge import BridgePlan, bridge_tokens, plan_bridge
from ripe_mambaspike.nn.fused.hierarchy import HierarchyPlan, classify, plan_hierarchy
from ripe_mambaspike.nn.fused.layers import affine_of, coefficient_of
from ripe_mambaspike.nn.fused.stage import (
    FirstNeuronOutput,
    Spikes,
    StagePlan,
    plan_stage,
    run_first_neuron,
    run_first_neuron_from_events,
    run_stage,
)
from ripe_mambaspike.nn.norm import EPSILON, SharedNorm, TimeBatchNorm, check_statistics
from ripe_mambaspike.nn.sync_stats import joint_count, joint_spread
from ripe_mambaspike.ops.backend import backend, log_once, precision
from ripe_mambaspike.ops.shapes import at_least_float32
from ripe_mambaspike.ops.tdm import tdm


class Plan(NamedTuple):
    entry: tuple[Tensor, Tensor]  # scale and shift of the entry norm [T, 2], [1, 2] where all steps share them
    track_entry: Callable[[ForwardMode], None] | None  # with batch statistics: lets its running ones follow
    coefficients: tuple[Tensor | None, ...]  # of the filters before the stages' first convolutions
    stages: tuple[StagePlan, ...]
    bridge: BridgePlan
    hierarchy: HierarchyPlan
    select: Any  # the tokens kept, from the last stage's spikes
    scales: int  # how many of the stages the bridge reads
    dtype: torch.dtype


def kernels_cover(model: Any, x: Tensor, mode: ForwardMode = HARD) -> bool:
    """Whether this pass can be computed by the fused operators; if not although they are there, the log says why."""
    if mode.literal or backend(x, precision(x)) is None:
        return False
    config: RipeConfig = model.config
    if config.form == "dual-kernel":
        log_once("no kernels for the dual-kernel form; the reference path takes over")
        return False
    found = model.modification()
    if found is not None:
        log_once(f"{found}; the reference path takes over")
        return False
    if config.form == "training" and len({m.training for m in model.modules() if isinstance(m, _BatchNorm)}) > 1:
        log_once("norms partly in training, partly in evaluation; the reference path takes over")
        return False
    return True


def plan(model: Any, x: Tensor) -> Plan:
    """The plan for inputs like x: its device and precision decide. With batch statistics it is for x alone."""
    dtype = precision(x)
    entry = model.entry
    tracked = entry.training and isinstance(entry, TimeBatchNorm)
    read = len(model.stages) if model.config.bridge == "mr-s3a" else 1
    affine, track = _entry_of_batch(entry, x) if tracked else (affine_of(entry), None)
    return Plan(
        affine,
        track,
        tuple(coefficient_of(stage.first_conv) for stage in model.stages),
        tuple(plan_stage(stage, dtype) for stage in model.stages),
        plan_bridge(model.bridge, dtype),
        plan_hierarchy(model.hierarchy, model.head, dtype),
        _selection(model),
        read,
        dtype,
    )


def run_fused(
    planned: Plan, x: Tensor, mode: ForwardMode = HARD, token_indices: Tensor | None = None, want_rates: bool = True
) -> Output:
    """x [B, T, 2, H, W] → logits, rates, the last attention map and the tokens kept."""
    with torch.autocast(x.device.type, enabled=False):
        kept: list[Spikes] = []
        rates = []
        following = (*planned.coefficients[1:], None)
        attention = x
        for level, (stage, coefficient) in enumerate(zip(planned.stages, following, strict=True)):
            last = level == len(planned.stages) - 1
            result = run_stage(
                stage,
                run_first_neuron(stage, kept[-1].operand, mode) if level else _enter(planned, x, mode),
                coefficient,
                mode,
                keep_attention=last,
                keep_rates=want_rates,
            )
            if level and not torch.is_grad_enabled():
                kept[-1] = kept[-1].without_operand()
            attention = result.attention
            kept.append(result.spikes)
            rates += result.rates
        if token_indices is None:
            token_indices = planned.select(kept[-1].data.permute(0, 1, 4, 2, 3))
        tokens = bridge_tokens(planned.bridge, kept[-planned.scales :], attention, token_indices, mode)
        logits = nan_where_not_finite(classify(planned.hierarchy, tokens).to(x.dtype), x)
    measured = torch.stack(rates) if rates else logits.new_empty(0)
    return Output(logits, measured, attention.permute(0, 1, 4, 2, 3), token_indices)


def _selection(model: Any) -> Callable[[Tensor], Tensor | None]:
    """The tokens kept, from the last stage's spikes [B, T, C, H, W]; None where all are."""
    return lambda spikes: model.select(model.tokens(spikes)[0])


def _entry_of_batch(norm: TimeBatchNorm, x: Tensor) -> tuple[tuple[Tensor, Tensor], Callable[[ForwardMode], None]]:
    """The affine that normalizes this batch's steps, and what lets the running statistics follow."""
    if isinstance(norm, SharedNorm):
        x = x.flatten(0, 1).unsqueeze(1)
    steps = x.shape[1]
    count = joint_count(x.shape[0] * x.shape[3] * x.shape[4])
    check_statistics(count)
    variance, mean = torch.var_mean(at_least_float32(x), (0, 3, 4), correction=0)
    mean, variance = joint_spread(mean, variance)
    scale = at_least_float32(norm.weight[:steps]) * torch.rsqrt(variance + EPSILON)
    shift = at_least_float32(norm.bias[:steps]) - mean * scale
    return (scale, shift), lambda mode: norm.track(mean, variance, count, mode)


def _enter(planned: Plan, x: Tensor, mode: ForwardMode) -> FirstNeuronOutput:
    """The entry norm, the first stage's temporal filter and its first neuron."""
    if planned.track_entry is not None:
        planned.track_entry(mode)
    elif not torch.is_grad_enabled():
        return run_first_neuron_from_events(planned.stages[0], x, planned.entry, planned.coefficients[0], mode)
    scale, shift = (value[: x.shape[1], :, None, None] for value in planned.entry)
    normed = torch.addcmul(shift, x, scale)
    coefficient = planned.coefficients[0]
    if coefficient is not None:
        normed = tdm(normed, coefficient)[0]
    return run_first_neuron(planned.stages[0], normed.permute(0, 1, 3, 4, 2).to(planned.dtype).contiguous(), mode)
