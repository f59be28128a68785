"""Mamba-1 modules: one direction, and the blocks of the hierarchy: bidirectional, or causal."""

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from ripe_mambaspike.nn.norm import Affine, norm_affine
from ripe_mambaspike.nn.state import State
from ripe_mambaspike.ops.mamba_inner import InnerWeights, MambaState
from ripe_mambaspike.ops.mamba_inner.reference import causal_conv
from ripe_mambaspike.ops.mamba_inner.scan import selective_scan
from ripe_mambaspike.ops.shapes import at_least_float32

STATES = 16
TAPS = 4
EXPAND = 2
CHANNELS_PER_RANK = 16  # of the step projection
STEP_RANGE = (1e-3, 1e-1)
STEP_FLOOR = 1e-4


class MambaSizes(NamedTuple):
    """The sizes of a Mamba beside its width, named as in `mamba_ssm`."""

    d_state: int = STATES  # states of a channel
    d_conv: int = TAPS  # taps of the convolution
    expand: int = EXPAND  # inner channels for each of the width's
    d_inner: int | None = None  # the number of inner channels, if it is not expand · width

    def inner(self, width: int) -> int:
        return self.expand * width if self.d_inner is None else self.d_inner


MAMBA_SIZES = MambaSizes()


def step_rank(width: int) -> int:
    """The rank of the step projection."""
    return math.ceil(width / CHANNELS_PER_RANK)


class CausalConv1d(nn.Module):
    """Mamba's depthwise convolution over the past: [B, L, E] → [B, L, E], and the last inputs as state."""

    def __init__(self, channels: int, *, taps: int = TAPS, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def forward(self, x: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return causal_conv(x, self.weight.squeeze(1), self.bias, initial_state)


class Mamba(nn.Module):
    """Mamba-1 in one direction, with the parameter names and the initialization of `mamba_ssm.Mamba`.

    A state dict of that module (of the same sizes) loads as it is. [B, L, d] → [B, L, d].
    """

    def __init__(self, width: int, sizes: MambaSizes = MAMBA_SIZES, *, conv_bias: bool = True) -> None:
        super().__init__()
        inner, rank = sizes.inner(width), step_rank(width)
        self.rank, self.states = rank, sizes.d_state
        self.in_proj = _linear(width, 2 * inner)
        self.conv1d = CausalConv1d(inner, taps=sizes.d_conv, bias=conv_bias)
        self.x_proj = _linear(inner, rank + 2 * self.states)
        self.dt_proj = _linear(rank, inner, bias=True)
        self.A_log = nn.Parameter(torch.empty(inner, self.states))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = _linear(inner, width)
        if not self.A_log.is_meta:  # on the meta device there is nothing to initialize
            self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        for weight in (self.in_proj.weight, self.x_proj.weight, self.out_proj.weight):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound)
        for parameter in self.conv1d.parameters():
            bound = self.conv1d.weight.shape[2] ** -0.5
            parameter.uniform_(-bound, bound)
        self.A_log.copy_(torch.tensor([math.log(state + 1) for state in range(self.states)]))  # S4D-real: A = −1 … −N
        self.dt_proj.weight.uniform_(-(self.rank**-0.5), self.rank**-0.5)
        low, high = map(math.log, STEP_RANGE)
        step = torch.empty_like(self.dt_proj.bias).uniform_(low, high).exp_().clamp_(min=STEP_FLOOR)
        self.dt_proj.bias.copy_(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step

    def forward(self, x: Tensor, initial_state: MambaState | None = None) -> tuple[Tensor, MambaState]:
        conv, ssm = (None, None) if initial_state is None else initial_state
        (inner, delta, b, c, gate), conv = self._before_scan(x, conv)
        y, ssm = selective_scan(inner, delta, -torch.exp(at_least_float32(self.A_log)), b, c, self.D, ssm)
        return self.out_proj(y * F.silu(gate)), MambaState(conv, ssm)

    def _before_scan(self, x: Tensor, conv_state: Tensor | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        """(inner, delta [B, L, E], B, C [B, L, N], gate [B, L, E]), and the convolution's state."""
        inner, gate = self.in_proj(x).chunk(2, -1)
        inner, conv_state = self.conv1d(inner, conv_state)
        inner = F.silu(inner)
        step, b, c = self.x_proj(inner).split((self.rank, self.states, self.states), -1)
        return (inner, F.softplus(self.dt_proj(step)), b, c, gate), conv_state

    @staticmethod
    def through_one_scan(directions: "Sequence[Mamba]", inputs: Sequence[Tensor]) -> list[Tensor]:
        """Each direction over its own input [B, L, d]: with one scan an exported graph has half the nodes."""
        read = (direction._before_scan(x)[0] for direction, x in zip(directions, inputs, strict=True))
        inner, delta, b, c, gate = map(torch.stack, zip(*read, strict=True))
        decay = -torch.exp(at_least_float32(torch.stack([direction.A_log for direction in directions]))).unsqueeze(1)
        skip = torch.stack([direction.D for direction in directions])[:, None, None]
        y = selective_scan(inner, delta, decay, b, c, skip)[0] * F.silu(gate)
        return [direction.out_proj(one) for direction, one in zip(directions, y.unbind(), strict=True)]


def _linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    """Uninitialized: the default initialization would waste random numbers."""
    return skip_init(nn.Linear, inputs, outputs, bias=bias, device=torch.get_default_device())


class BlockPlan(NamedTuple):
    """A block's weights as the fused operator reads them: D = 2 directions stacked, or one for a causal block."""

    norm: Affine  # LayerNorm [d], float32
    in_proj: Tensor  # [D·2E, d]
    inner: InnerWeights
    out_proj: Tensor  # [d, D·E]: each direction's own projection and the merge in one
    out_bias: Tensor | None  # [d]


def plan_block(
    norm: nn.LayerNorm, directions: Sequence[Mamba], merge: nn.Linear | None, dtype: torch.dtype
) -> BlockPlan:
    """For `nn.fused`: products in `dtype`, everything else in float32."""
    in_proj = torch.cat([direction.in_proj.weight for direction in directions])
    out, bias = directions[0].out_proj.weight, None
    if merge is not None:
        pairs = zip(merge.weight.chunk(2, 1), directions, strict=True)
        out, bias = torch.cat([part @ direction.out_proj.weight for part, direction in pairs], 1), merge.bias.to(dtype)
    return BlockPlan(norm_affine(norm), in_proj.to(dtype), inner_weights(directions, dtype), out.to(dtype), bias)


def inner_weights(directions: Sequence[Mamba], dtype: torch.dtype) -> InnerWeights:
    """The weights of one or two directions between their projections, stacked."""

    def stacked(name: str) -> Tensor:
        return at_least_float32(torch.stack([attrgetter(name)(direction) for direction in directions]))

    bias = None if directions[0].conv1d.bias is None else stacked("conv1d.bias")
    dt_proj = (stacked("dt_proj.weight"), stacked("dt_proj.bias"))
    x_proj, a = stacked("x_proj.weight").to(dtype), -torch.exp(stacked("A_log"))
    return InnerWeights(stacked("conv1d.weight").squeeze(2), bias, x_proj, *dt_proj, a, stacked("D"))


class BidirectionalMamba(nn.Module):
    """Forward and backward Mamba over the normalized tokens, merged by one Linear. [B, L, d] → [B, L, d]."""

    causal: ClassVar[type[nn.Module]]  # the block of a causal network

    def __init__(self, width: int, sizes: MambaSizes = MAMBA_SIZES) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.forward_mamba, self.backward_mamba = Mamba(width, sizes), Mamba(width, sizes)
        self.merge = nn.Linear(2 * width, width)

    def plan(self, dtype: torch.dtype) -> BlockPlan:
        return plan_block(self.norm, (self.forward_mamba, self.backward_mamba), self.merge, dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if torch.compiler.is_exporting():
            directions = (self.forward_mamba, self.backward_mamba)
            forward, backward = Mamba.through_one_scan(directions, (x, x.flip(1)))
        else:
            forward, backward = self.forward_mamba(x)[0], self.backward_mamba(x.flip(1))[0]
        merged: Tensor = self.merge(torch.cat((forward, backward.flip(1)), -1))
        return merged


class CausalMamba(nn.Module):
    """Forward Mamba over the normalized tokens, without a merging Linear. [B, L, d] → [B, L, d]."""

    def __init__(self, width: int, sizes: MambaSizes = MAMBA_SIZES) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.forward_mamba = Mamba(width, sizes)

    def plan(self, dtype: torch.dtype) -> BlockPlan:
        return plan_block(self.norm, (self.forward_mamba,), None, dtype)

    def forward_with_state(self, x: Tensor, initial_state: State | None = None) -> tuple[Tensor, State]:
        """Run a piece of a longer sequence from the state of the piece before it."""
        before = MambaState(initial_state["conv"], initial_state["ssm"]) if initial_state else None
        mixed, (conv, ssm) = self.forward_mamba(self.norm(x), before)
        return mixed, {"conv": conv, "ssm": ssm}

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_with_state(x)[0]


BidirectionalMamba.causal = CausalMamba
