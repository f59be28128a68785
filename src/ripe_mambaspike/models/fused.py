"""RIPE-MambaSpike over the fused operators: the network of `models.ripe`, with the same results, states and names.

`plan_network` prepares the weights for the operators: folded, cast, transformed. In evaluation without gradients the
model caches its plans (`prepared_plan`) until a weight changes. In training a plan is made for each pass, and gradients
flow through it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _BatchNorm

from ripe_mambaspike.models.base import FrontEnd, Output, PreparedPlan, PreparedWeights
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.input_checks import nan_where_not_finite
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.fused.bridge import BridgePlan, bridge_features, bridge_tokens, join_tokens, plan_bridge
from ripe_mambaspike.nn.fused.carried import Carried
from ripe_mambaspike.nn.fused.coverage import without_kernels
from ripe_mambaspike.nn.fused.hierarchy import HierarchyPlan, apply_head, mix_tokens, plan_hierarchy
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
from ripe_mambaspike.nn.norm import SharedNorm, TimeBatchNorm, check_statistics
from ripe_mambaspike.nn.stage import count_spikes
from ripe_mambaspike.nn.state import Names, State, Step, compact, prefixed
from ripe_mambaspike.nn.sync_stats import joint_count, joint_spread
from ripe_mambaspike.ops.backend import backend, log_once, precision
from ripe_mambaspike.ops.cpp.memory_hash import MemoryHash
from ripe_mambaspike.ops.norm import EPSILON
from ripe_mambaspike.ops.shapes import at_least_float32
from ripe_mambaspike.ops.tdm import tdm

MIN_FULL_CHECK = 2**17  # elements of an input; with fewer, hashing all weights would take more than 1 % of a call
OBSERVABLE = frozenset({"spikes", "spike_counts", "attention"})  # by the operators; others need the reference path


class NetworkPlan(NamedTuple):
    entry: tuple[Tensor, Tensor]  # scale and shift of the entry norm [T, 2], [1, 2] where all steps share them
    track_entry: Callable[[ForwardMode], None] | None  # with batch statistics: updates the running ones
    coefficients: tuple[Tensor | None, ...]  # of the filters before the stages' first convolutions
    stages: tuple[StagePlan, ...]
    bridge: BridgePlan
    hierarchy: HierarchyPlan
    tokens: Any  # the module that scores positions
    select: Callable[[Tensor | None], Tensor | None]  # the positions with the highest scores
    scales: int  # how many of the stages the bridge reads
    dtype: torch.dtype


def kernels_cover(model: Any, x: Tensor, mode: ForwardMode = HARD) -> bool:
    """Whether the fused operators can compute this pass; if they are available but cannot, the reason is logged."""
    kind = None if mode.literal else backend(x, precision(x))
    if kind is None:
        return False
    config: RipeConfig = model.config
    if config.form == "dual-kernel":
        log_once("no kernels for the dual-kernel form; using the reference path")
        return False
    found = model.modification() or without_kernels(model, kind)
    if found is not None:
        log_once(f"{found}; using the reference path")
        return False
    if config.form == "training" and len({m.training for m in _modules(model) if isinstance(m, _BatchNorm)}) > 1:
        log_once("norms partly in training, partly in evaluation; using the reference path")
        return False
    return True


def steps_covered(model: Any, x: Tensor, mode: ForwardMode, observe: Names = ()) -> bool:
    """Whether the fused operators can run x as part of a recording, with state: in evaluation, without gradients."""
    evaluating = not torch.is_grad_enabled() and not model.entry.training
    return evaluating and OBSERVABLE.issuperset(observe) and kernels_cover(model, x, mode)


def plan_network(model: Any, x: Tensor) -> NetworkPlan:
    """The plan for inputs with x's device and dtype. With batch statistics it is for x alone."""
    dtype = precision(x)
    entry = model.entry
    tracked = entry.training and isinstance(entry, TimeBatchNorm)
    read = len(model.stages) if model.config.bridge == "mr-s3a" else 1
    affine, track = _entry_of_batch(entry, x) if tracked else (affine_of(entry), None)
    return NetworkPlan(
        affine,
        track,
        tuple(coefficient_of(stage.first_conv) for stage in model.stages),
        tuple(plan_stage(stage, dtype) for stage in model.stages),
        plan_bridge(model.bridge, dtype),
        plan_hierarchy(model.hierarchy, model.head, dtype),
        model.tokens,
        model.select,
        read,
        dtype,
    )


class _Front(NamedTuple):
    spikes: list[Spikes]  # of the stages
    attention: Tensor  # of the last stage [B, T, h, w, C]
    rates: list[Tensor]
    scores: Tensor | None  # of the tokens
    observed: dict[str, Tensor]


def _run_stages(
    planned: NetworkPlan, x: Tensor, mode: ForwardMode, carried: Carried, keep_rates: bool, observe: Names = ()
) -> _Front:
    kept: list[Spikes] = []
    rates = []
    observed: dict[str, Tensor] = {}
    following = (*planned.coefficients[1:], None)
    attention = x
    for level, (stage, coefficient) in enumerate(zip(planned.stages, following, strict=True)):
        name, last = f"stages.{level}", level == len(planned.stages) - 1
        result = run_stage(
            stage,
            _first_neuron(planned, level, kept[-1].operand if level else x, mode, carried),
            coefficient,
            mode,
            carried,
            level,
            keep_attention=last or "attention" in observe,
            keep_rates=keep_rates,
        )
        if level and not torch.is_grad_enabled():
            kept[-1] = kept[-1].without_operand()
        attention = result.attention
        kept.append(result.spikes)
        rates += result.rates
        for neuron, fired in (("first_neuron", result.inner), ("second_neuron", result.spikes.data)):
            if "spikes" in observe:
                observed[f"{name}.{neuron}.spikes"] = fired.permute(0, 1, 4, 2, 3).to(x.dtype)
            if "spike_counts" in observe:
                observed[f"{name}.{neuron}.spike_counts"] = count_spikes(fired)
        if "attention" in observe:
            observed[f"{name}.attention"] = attention.permute(0, 1, 4, 2, 3)
    fired = kept[-1].data.permute(0, 1, 4, 2, 3)
    scores, left = planned.tokens(fired, carried.part("tokens"), carried.first_step)
    if carried.wanted:
        for key, value in prefixed("tokens", left).items():
            carried.keep(key, value)
    return _Front(kept, attention, rates, scores, observed)


def run_fused(
    planned: NetworkPlan,
    x: Tensor,
    mode: ForwardMode = HARD,
    token_indices: Tensor | None = None,
    want_rates: bool = True,
    state: State | None = None,
    observe: Names = (),
) -> Output:
    """x [B, T, 2, H, W] → all outputs of a pass; a causal network continues from a state and returns the next one."""
    carried = Carried(state, wanted=state is not None)
    with _without_autocast(x):
        front = _run_stages(planned, x, mode, carried, want_rates, observe)
        if token_indices is None:
            token_indices = planned.select(front.scores)
        read = front.spikes[-planned.scales :]
        tokens = bridge_tokens(planned.bridge, read, front.attention, token_indices, mode, carried)
        tokens = mix_tokens(planned.hierarchy, tokens, carried)
        logits = nan_where_not_finite(apply_head(planned.hierarchy, tokens).to(x.dtype), x)
    rates = torch.stack(front.rates) if front.rates else logits.new_empty(0)
    final = None if state is None else compact(carried.final)
    attention = front.attention.permute(0, 1, 4, 2, 3)
    return Output(logits, rates, attention, token_indices, final, front.observed)


def run_front_end(
    planned: NetworkPlan,
    x: Tensor,
    mode: ForwardMode = HARD,
    state: State | None = None,
    first_step: Step = 0,
    observe: Names = (),
    rows: Tensor | None = None,
) -> FrontEnd:
    """`RipeMambaSpike.front_end` over the fused operators.

    With `rows` [B], sample b continues from row rows[b] of the state, which is updated in place, and the rates are
    numbers of spikes of each sample instead: of every stage's output [B, 3].
    """
    in_place = rows is not None and backend(x, planned.dtype) == "native" and planned.bridge.keep is None
    carried = Carried(state, first_step, wanted=True, rows=rows, in_place=in_place)
    with _without_autocast(x):
        front = _run_stages(planned, x, mode, carried, rows is None, observe)
        grid = front.attention.shape
        features = bridge_features(planned.bridge, front.spikes[-planned.scales :], grid, mode, carried)
    attention = front.attention.permute(0, 1, 4, 2, 3)
    counted = rows is not None
    rates = torch.stack([count_spikes(one.data) for one in front.spikes], 1) if counted else torch.stack(front.rates)
    final = compact(carried.final) if rows is None else carried.initial
    return FrontEnd(features, attention, rates, front.scores, final, front.observed)


def run_tail(planned: NetworkPlan, features: Tensor, attention: Tensor, token_indices: Tensor | None) -> Tensor:
    """Features and attention of `front_end` for a whole recording → tokens after the hierarchy [B, T, k, d]."""
    with _without_autocast(features):
        rows = attention.permute(0, 1, 3, 4, 2)
        tokens = join_tokens(planned.bridge, features, rows, token_indices)
        return mix_tokens(planned.hierarchy, tokens)


def run_head(planned: NetworkPlan, tokens: Tensor, pre_logits: bool = False) -> Tensor:
    """The head over the tokens of `run_tail`."""
    with _without_autocast(tokens):
        return apply_head(planned.hierarchy, tokens, pre_logits)


def _without_autocast(x: Tensor) -> AbstractContextManager[object]:
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def prepared_plan(model: Any, x: Tensor) -> NetworkPlan:
    """The plan for inputs like x, cached until a weight changes."""
    keeps = not torch.is_grad_enabled() and not model.entry.training
    if not keeps or torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        return plan_network(model, x)
    tensors = _tensors(model)
    kind = backend(x, precision(x))
    uncounted = any(one.is_inference() for one in tensors)  # created in inference mode: they have no version counter
    if uncounted and kind != "native":
        return plan_network(model, x)
    try:
        counters = [0 if one.is_inference() else one._version for one in tensors]
        versions = [*map(id, tensors), *counters, *(one.data_ptr() for one in tensors)]
    except RuntimeError:  # without storage
        return plan_network(model, x)
    kept: PreparedWeights = model.prepared_weights
    key = (x.device, precision(x), kind)
    found = kept.entries.get(key)
    if found is not None and found.is_current(versions, uncounted or x.numel() >= MIN_FULL_CHECK):
        return found.plan
    contents = MemoryHash(tensors) if kind == "native" else None
    with torch.inference_mode(False), torch.no_grad():
        made = plan_network(model, x)
    kept.entries[key] = PreparedPlan(tensors, versions, contents, made)
    return made


def _modules(model: nn.Module) -> list[nn.Module]:
    """All modules, read from `_modules`: this runs before every pass, and `modules()` is slower."""
    found = [model]
    for module in found:  # grows while iterating
        if children := module.__dict__["_modules"]:
            found += [child for child in children.values() if child is not None]
    return found


def _tensors(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers."""
    found = []
    for module in _modules(model):
        held = module.__dict__
        for group in (held["_parameters"], held["_buffers"]):
            if group:
                found += [tensor for tensor in group.values() if tensor is not None]
    return found


def _entry_of_batch(norm: TimeBatchNorm, x: Tensor) -> tuple[tuple[Tensor, Tensor], Callable[[ForwardMode], None]]:
    """The affine that normalizes this batch's steps, and a function that updates the running statistics."""
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


def _first_neuron(
    planned: NetworkPlan, level: int, x: Tensor, mode: ForwardMode, carried: Carried
) -> FirstNeuronOutput:
    """A stage's first neuron; in the first stage from events, through the entry norm and the temporal filter."""
    stage, coefficient = planned.stages[level], planned.coefficients[level]
    if level:
        return run_first_neuron(stage, x, mode, carried, f"stages.{level}")
    if planned.track_entry is not None:
        planned.track_entry(mode)
    elif not torch.is_grad_enabled():
        return run_first_neuron_from_events(stage, x, planned.entry, coefficient, mode, carried)
    scale, shift = (value[: x.shape[1], :, None, None] for value in planned.entry)
    normed = torch.addcmul(shift, x, scale)
    if coefficient is not None:
        normed = tdm(normed, coefficient)[0]
    operand = normed.permute(0, 1, 3, 4, 2).to(planned.dtype).contiguous()
    return run_first_neuron(stage, operand, mode, carried, "stages.0")
