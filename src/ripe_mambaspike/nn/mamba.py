"""Mamba-1 modules: one direction, and the blocks of the hierarchy: bidirectional, or causal."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ripe_mambaspike.ops.mamba_inner import InnerWeights
from ripe_mambaspike.ops.mamba_inner.reference import BidirectionalState, MambaState, MambaWeights, mamba
from ripe_mambaspike.ops.shapes import at_least_float32

STATES = 16
TAPS = 4
EXPAND = 2
STEP_RANGE = (1e-3, 1e-1)
STEP_FLOOR = 1e-4


class Mamba(nn.Module):
    """Holds the weights of one direction, with the standard initialization."""

    def __init__(self, width: int, *, conv_bias: bool = True) -> None:
        super().__init__()
        inner, rank = EXPAND * width, math.ceil(width / 16)
        self.in_proj = nn.Parameter(torch.empty(2 * inner, width))
        self.conv = nn.Parameter(torch.empty(inner, TAPS))
        self.conv_bias = nn.Parameter(torch.empty(inner)) if conv_bias else None
        self.x_proj = nn.Parameter(torch.empty(rank + 2 * STATES, inner))
        self.dt_proj = nn.Parameter(torch.empty(inner, rank))
        self.dt_bias = nn.Parameter(torch.empty(inner))
        self.a_log = nn.Parameter(torch.empty(inner, STATES))
        self.skip = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Parameter(torch.empty(width, inner))
        if not self.in_proj.is_meta:  # a skeleton that is counted or loaded into has no numbers yet
            self._initialize(rank)

    @torch.no_grad()
    def _initialize(self, rank: int) -> None:
        for weight in (self.in_proj, self.x_proj, self.out_proj, self.conv):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound)
        if self.conv_bias is not None:
            self.conv_bias.uniform_(-(TAPS**-0.5), TAPS**-0.5)
        self.a_log.copy_(torch.tensor([math.log(state + 1) for state in range(STATES)]))  # S4D-real: A = −1 … −N
        self.dt_proj.uniform_(-(rank**-0.5), rank**-0.5)
        low, high = map(math.log, STEP_RANGE)
        step = torch.empty_like(self.dt_bias).uniform_(low, high).exp_().clamp_(min=STEP_FLOOR)
        self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step

    def weights(self) -> MambaWeights:
        return MambaWeights(
            self.in_proj,
            self.conv,
            self.conv_bias,
            self.x_proj,
            self.dt_proj,
            self.dt_bias,
            self.a_log,
            self.skip,
            self.out_proj,
        )

    def forward(self, x: Tensor, initial_state: MambaState | None = None) -> tuple[Tensor, MambaState]:
        return mamba(x, self.weights(), initial_state)


class BlockPlan(NamedTuple):
    """A block's weights as the fused operator takes them: D = 2 directions together, or the one of a causal block."""

    norm: tuple[Tensor, Tensor]  # LayerNorm [d], float32
    in_proj: Tensor  # [D·2E, d]
    inner: InnerWeights
    out_proj: Tensor  # [d, D·E]: each direction's own projection and the merge in one
    out_bias: Tensor | None  # [d]


def inner_weights(directions: Sequence[Mamba], dtype: torch.dtype) -> InnerWeights:
    """The weights of one or two directions, stacked."""

    def stacked(name: str) -> Tensor:
        return at_least_float32(torch.stack([getattr(direction, name) for direction in directions]))

    bias = None if directions[0].conv_bias is None else stacked("conv_bias")
    x_proj = stacked("x_proj").to(dtype)
    decay = -torch.exp(stacked("a_log"))
    return InnerWeights(stacked("conv"), bias, x_proj, stacked("dt_proj"), stacked("dt_bias"), decay, stacked("skip"))


class BidirectionalMamba(nn.Module):
    """Forward and backward Mamba over the normalized tokens, merged by one Linear. [B, L, d] → [B, L, d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.ahead, self.behind = Mamba(width), Mamba(width)
        self.merge = nn.Linear(2 * width, width)

    def plan(self, dtype: torch.dtype) -> BlockPlan:
        """For `nn.fast`: products in `dtype`, everything else in float32."""
        directions = (self.ahead, self.behind)
        in_proj = torch.cat([direction.in_proj for direction in directions])
        out = torch.cat([m @ d.out_proj for m, d in zip(self.merge.weight.chunk(2, 1), directions, strict=True)], 1)
        norm = (at_least_float32(self.norm.weight), at_least_float32(self.norm.bias))
        inner = inner_weights(directions, dtype)
        return BlockPlan(norm, in_proj.to(dtype), inner, out.to(dtype), self.merge.bias.to(dtype))

    def forward(self, x: Tensor, initial_state: BidirectionalState | None = None) -> Tensor:
        x = self.norm(x)
        state = initial_state or BidirectionalState(None, None)
        ahead, behind = self.ahead(x, state.forward)[0], self.behind(x.flip(1), state.backward)[0]
        merged: Tensor = self.merge(torch.cat((ahead, behind.flip(1)), -1))
        return merged


class CausalMamba(nn.Module):
    """Forward Mamba over the normalized tokens; its own projection is all that follows. [B, L, d] → [B, L, d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.ahead = Mamba(width)

    def plan(self, dtype: torch.dtype) -> BlockPlan:
        """For `nn.fast`, as the bidirectional block's."""
        norm = (at_least_float32(self.norm.weight), at_least_float32(self.norm.bias))
        projections = (self.ahead.in_proj.to(dtype), self.ahead.out_proj.to(dtype))
        return BlockPlan(norm, projections[0], inner_weights((self.ahead,), dtype), projections[1], None)

    def advance(self, x: Tensor, initial_state: MambaState | None = None) -> tuple[Tensor, MambaState]:
        """A piece of a longer sequence, after the state of the piece before it."""
        mixed: tuple[Tensor, MambaState] = self.ahead(self.norm(x), initial_state)
        return mixed

    def forward(self, x: Tensor) -> Tensor:
        return self.advance(x)[0]
