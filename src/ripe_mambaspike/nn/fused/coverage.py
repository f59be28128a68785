"""The modules that the fused operators replace, and what they require of each."""

from typing import Any

import torch
from torch import nn

from ripe_mambaspike.nn.attention import MembraneAttention, NoAttention, SigmoidGate
from ripe_mambaspike.nn.bridge import (
    PROJECTIONS,
    Bridge,
    FoldedMixture,
    FoldedProjection,
    ProjectedMixture,
)
from ripe_mambaspike.nn.hierarchy import Hierarchy, Transition
from ripe_mambaspike.nn.mamba import BidirectionalMamba, CausalConv1d, CausalMamba, Mamba
from ripe_mambaspike.nn.mixers import ConvBlock, GRUBlock, TransformerBlock
from ripe_mambaspike.nn.modified import REGISTERED, known
from ripe_mambaspike.nn.neurons import LIF, CSiLIF, SiLIF
from ripe_mambaspike.nn.norm import SharedAffine, SharedNorm, TimeAffine, TimeBatchNorm, standard_norm
from ripe_mambaspike.nn.repconv import BRANCHES, DualKernelConv, FusedConv, RepConv
from ripe_mambaspike.nn.stage import SpikingStage
from ripe_mambaspike.nn.tokens import TokenSelection
from ripe_mambaspike.ops.mamba_inner.triton_scan_plan import MAX_STATES, supports_states
from ripe_mambaspike.ops.neurons import CSILIF_RESET
from ripe_mambaspike.ops.norm import EPSILON

BATCH_NORMS = (TimeBatchNorm, SharedNorm)
AFFINES = (TimeAffine, SharedAffine)
NEURONS = (LIF, SiLIF, CSiLIF)
ATTENTIONS = (MembraneAttention, SigmoidGate, NoAttention)
MAMBAS = (BidirectionalMamba, CausalMamba)
MIXERS = (TransformerBlock, GRUBlock, ConvBlock)  # run by their own modules


def _kinds(module: nn.Module, *names: str) -> list[type]:
    """The types of its children by name; read from `_modules`, which is faster than attribute access."""
    children: dict[str, Any] = module.__dict__["_modules"]
    return [type(children[name]) for name in names]


def _has_bias(module: nn.Module, name: str) -> bool:
    return module.__dict__["_modules"][name].__dict__["_parameters"]["bias"] is not None


def _stage(stage: Any, deployed: tuple[type, ...] = (FusedConv,)) -> bool:
    for level, stride in (("first", 2), ("second", 1)):
        conv, norm, neuron = _kinds(stage, f"{level}_conv", f"{level}_norm", f"{level}_neuron")
        pair = (conv is RepConv and norm in BATCH_NORMS) or (conv in deployed and norm in AFFINES)
        if (
            not pair
            or not (neuron in NEURONS or neuron in REGISTERED)
            or stage.__dict__["_modules"][f"{level}_conv"].stride != stride
        ):
            return False
    attention = _kinds(stage, "attention")[0]
    return attention in ATTENTIONS or attention in REGISTERED


def _bridge(bridge: Any) -> bool:
    mixture, norm, attention = _kinds(bridge, "mixture", "norm", "attention")
    mixes = mixture in (ProjectedMixture, FoldedMixture)
    return mixes and (norm, attention) == (nn.LayerNorm, nn.Linear) and _has_bias(bridge, "attention")


def _transition(transition: Any) -> bool:
    return _kinds(transition, "widen", "norm") == [nn.Linear, nn.LayerNorm] and _has_bias(transition, "widen")


def _hierarchy(hierarchy: Any) -> bool:
    ways = (Transition, nn.Identity)
    return _kinds(hierarchy, "norm") == [nn.LayerNorm] and all(type(way) in ways for way in hierarchy.transitions)


def _bidirectional(block: Any) -> bool:
    kinds = _kinds(block, "norm", "forward_mamba", "backward_mamba", "merge")
    return kinds == [nn.LayerNorm, Mamba, Mamba, nn.Linear] and _has_bias(block, "merge")


def _causal(block: Any) -> bool:
    return _kinds(block, "norm", "forward_mamba") == [nn.LayerNorm, Mamba]


def layer_norm(norm: Any) -> bool:
    """Whether it is a LayerNorm that the operators support."""
    held = norm.__dict__["_parameters"]
    whole = held["weight"] is not None and held["bias"] is not None
    return whole and norm.eps == EPSILON and len(norm.normalized_shape) == 1


TABLE = {
    **BRANCHES,
    **PROJECTIONS,
    **known(
        (
            nn.Sequential, nn.ParameterList, nn.Identity, nn.Linear, nn.LayerNorm, nn.GELU, nn.GRU, nn.Conv1d,
            *BATCH_NORMS, *AFFINES, *NEURONS, *ATTENTIONS, *MAMBAS, *MIXERS, Mamba, CausalConv1d, RepConv, FusedConv,
            SpikingStage,
            Bridge, ProjectedMixture, FoldedMixture, FoldedProjection, Hierarchy, Transition, TokenSelection,
        ),
        {
            TimeBatchNorm: standard_norm,
            SharedNorm: standard_norm,
            nn.LayerNorm: layer_norm,
            SpikingStage: _stage,
            Bridge: _bridge,
            Hierarchy: _hierarchy,
            Transition: _transition,
            BidirectionalMamba: _bidirectional,
            CausalMamba: _causal,
        },
    ),
}  # fmt: skip

# Parts of the network itself; its head may be any of these.
PARTS: dict[str, tuple[type, ...]] = {
    "entry": (*BATCH_NORMS, *AFFINES),
    "stages": (nn.ModuleList,),
    "bridge": (Bridge,),
    "tokens": (TokenSelection,),
    "hierarchy": (Hierarchy,),
}

# Also with the dual-kernel form, which no fused operator computes.
WITH_DUAL_KERNELS = {
    **TABLE,
    **known((DualKernelConv, SpikingStage), {SpikingStage: lambda stage: _stage(stage, (FusedConv, DualKernelConv))}),
}


def without_kernels(model: Any, kind: str) -> str | None:
    """A description of the first layer that kernels of this kind do not compute, for this pass."""
    for level, stage in enumerate(model.stages):
        for name in ("first_neuron", "second_neuron"):
            reason = _neuron_without_kernels(stage.__dict__["_modules"][name])
            if reason is not None:
                return f"no kernels for stages.{level}.{name} ({reason})"
    for level, block in enumerate(model.hierarchy.blocks if kind == "triton" else ()):
        if type(block) in MAMBAS and not supports_states(block.forward_mamba.states):
            wanted = f"a power of two up to {MAX_STATES}"
            return f"no kernels for hierarchy.blocks.{level} (d_state {block.forward_mamba.states} is not {wanted})"
    return None


def _neuron_without_kernels(neuron: Any) -> str | None:
    if not hasattr(type(neuron), "constants"):
        return type(neuron).__name__
    if getattr(neuron, "reset_factor", CSILIF_RESET) != CSILIF_RESET:
        return f"reset factor {neuron.reset_factor}"
    if getattr(neuron, "detach_reset", False) and torch.is_grad_enabled():
        return "gradients with a detached reset"
    return None
