"""The hierarchy and the head with the scan's inside fused: residuals and norms in float32, products in `dtype`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.nn.fused.bridge import UnnormedTokens
from ripe_mambaspike.nn.fused.carried import Carried
from ripe_mambaspike.nn.hierarchy import Hierarchy, drop_path, pool_tokens
from ripe_mambaspike.nn.mamba import BidirectionalMamba, BlockPlan, CausalMamba
from ripe_mambaspike.nn.norm import Affine, norm_affine
from ripe_mambaspike.ops.mamba_inner import MambaState, mamba_inner
from ripe_mambaspike.ops.row_norm import row_norm
from ripe_mambaspike.ops.shapes import at_least_float32


class LevelPlan(NamedTuple):
    ratio: int  # tokens averaged into one before it
    widen: tuple[Tensor, Tensor | None] | None  # Linear, then
    norm: Affine | None  # LayerNorm
    block: Callable[[Tensor, Carried, str], Tensor] | None
    drop_rate: float


class HierarchyPlan(NamedTuple):
    norm: Affine
    levels: tuple[LevelPlan, ...]
    head: tuple[Callable[[Tensor], Tensor], ...]


def plan_hierarchy(hierarchy: Hierarchy, head: Any, dtype: torch.dtype) -> HierarchyPlan:
    levels = []
    rates = hierarchy.drop_rates if hierarchy.training else [0.0] * len(hierarchy.drop_rates)
    for level, transition in enumerate(hierarchy.transitions):
        ratio = hierarchy.first_ratio if level == 0 else 1
        widen = norm = None
        if not isinstance(transition, nn.Identity):
            step: Any = transition
            ratio *= step.ratio
            widen, norm = _linear(step.widen, dtype), norm_affine(step.norm)
        mixes = level < len(hierarchy.blocks)
        block = _block(hierarchy.blocks[level], dtype) if mixes else None
        levels.append(LevelPlan(ratio, widen, norm, block, rates[level] if mixes else 0.0))
    parts = head if isinstance(head, nn.Sequential) else (head,)
    return HierarchyPlan(norm_affine(hierarchy.norm), tuple(levels), tuple(_apply(part, dtype) for part in parts))


def classify(plan: HierarchyPlan, given: Tensor | UnnormedTokens, carried: Carried | None = None) -> Tensor:
    """Tokens [B, T, k, d] → per-step logits [B, T, num_classes], float32."""
    return apply_head(plan, mix_tokens(plan, given, carried))


def mix_tokens(plan: HierarchyPlan, given: Tensor | UnnormedTokens, carried: Carried | None = None) -> Tensor:
    """Tokens [B, T, k, d] through every level: [B, T, k', d'], float32."""
    carried = carried or Carried()
    if isinstance(given, UnnormedTokens):
        tokens = given.normed(plan.norm)
    else:
        tokens = row_norm(given, *plan.norm, plan.norm[0].dtype)
    for index, level in enumerate(plan.levels):
        tokens = pool_tokens(tokens, level.ratio)
        if level.widen is not None and level.norm is not None:
            widened = F.linear(tokens.to(level.widen[0].dtype), *level.widen)
            tokens = row_norm(widened, *level.norm, level.norm[0].dtype)
        if level.block is not None:
            sequence = tokens.flatten(1, 2)
            mixed = level.block(sequence, carried, f"hierarchy.blocks.{index}")
            mixed = drop_path(mixed, level.drop_rate, level.drop_rate > 0)
            tokens = (sequence + mixed).view_as(tokens)
    return tokens


def apply_head(plan: HierarchyPlan, tokens: Tensor, pre_logits: bool = False) -> Tensor:
    """The mean over a step's tokens through the head: [B, T, k, d] → [B, T, num_classes], float32."""
    logits = tokens.mean(2)
    for part in plan.head[: len(plan.head) - pre_logits]:
        logits = part(logits)
    return logits


def run_block(plan: BlockPlan, x: Tensor, carried: Carried | None = None, name: str = "") -> Tensor:
    """`Linear[Mamba_f(LN x), flip Mamba_b(flip LN x)]`, or `Mamba_f(LN x)` alone: x [B, L, d] → [B, L, d]."""
    normed = row_norm(x, *plan.norm, plan.in_proj.dtype)
    inputs = F.linear(normed, plan.in_proj).unflatten(-1, (plan.inner.conv1d_weight.shape[0], -1))
    before = None
    if carried is not None and carried.initial:
        conv, ssm = (carried.initial[f"{name}.{part}"] for part in ("conv", "ssm"))
        before = MambaState(conv.to(inputs.dtype).contiguous(), ssm.contiguous())
    wanted = carried is not None and carried.wanted
    inner, left = mamba_inner(inputs, plan.inner, initial_state=before, output_final_state=wanted)
    if carried is not None and left is not None:
        carried.final |= {f"{name}.conv": left.conv, f"{name}.ssm": left.ssm}
    return F.linear(inner.flatten(2), plan.out_proj, plan.out_bias)


def _block(block: nn.Module, dtype: torch.dtype) -> Callable[[Tensor, Carried, str], Tensor]:
    if isinstance(block, BidirectionalMamba | CausalMamba):
        plan = block.plan(dtype)
        return lambda x, carried, name: run_block(plan, x, carried, name)
    apply = _apply(block, dtype)
    return lambda x, carried, name: apply(x)


def _apply(module: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Call a module with its input in the dtype of its weights; a Linear computes in `dtype`."""
    if isinstance(module, nn.Linear):
        weight, bias = _linear(module, dtype)
        return lambda x: at_least_float32(F.linear(x.to(dtype), weight, bias))
    own = next((p.dtype for p in module.parameters()), None)
    return lambda x: at_least_float32(module(x if own is None else x.to(own)))


def _linear(module: nn.Linear, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    return module.weight.to(dtype), None if module.bias is None else module.bias.to(dtype)
