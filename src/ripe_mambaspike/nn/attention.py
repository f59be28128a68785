"""DS-MPA and its variants. All map (potential, spikes, features) [B, T, C, H, W] to ((modulated, attention), state)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ripe_mambaspike.ops.membrane_attention.reference import (
    Attention,
    Factors,
    convex_attention,
    ds_mpa,
    sigmoid_attention,
    sigmoid_gate,
)

Attended = tuple[tuple[Tensor, Tensor], Tensor | None]

GROUPS = 4
RANK_DIVISOR = 4


def _factor(*shape: int) -> nn.Parameter:
    """A projection [.., out, in] with PyTorch's default initialization of a 1×1 convolution."""
    bound = shape[-1] ** -0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class MembraneAttention(nn.Module):
    """DS-MPA with its three projections given as factors: one matrix, two thin ones, or one per group."""

    def __init__(
        self, channels: int, shapes: tuple[tuple[int, ...], ...], attend: Attention = convex_attention
    ) -> None:
        super().__init__()
        self.query = nn.ParameterList(_factor(*shape) for shape in shapes)
        self.key = nn.ParameterList(_factor(*shape) for shape in shapes)
        self.value = nn.ParameterList(_factor(*shape) for shape in shapes)
        self.gain = nn.Parameter(torch.ones(channels))
        self.attend = attend

    def projections(self) -> tuple[Factors, Factors, Factors]:
        return tuple(self.query), tuple(self.key), tuple(self.value)

    def forward(
        self, potential: Tensor, spikes: Tensor, features: Tensor, initial_state: Tensor | None = None
    ) -> Attended:
        state = None if initial_state is None else initial_state.flatten(2)
        (out, attention), _ = ds_mpa(
            potential.flatten(3),
            spikes.flatten(3),
            features.flatten(3),
            *self.projections(),
            self.gain,
            attend=self.attend,
            initial_state=state,
        )
        return (out.view_as(features), attention.view_as(features)), spikes[:, -1]


class SigmoidGate(nn.Module):
    """The study's cheap gate: a 1×1 convolution with bias and a sigmoid, multiplying the features."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = _factor(channels, channels)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(
        self, potential: Tensor, spikes: Tensor, features: Tensor, initial_state: Tensor | None = None
    ) -> Attended:
        out, gate = sigmoid_gate(potential.flatten(3), features.flatten(3), self.weight, self.bias)
        return (out.view_as(features), gate.view_as(features)), None


class NoAttention(nn.Module):
    """Ablation A1: the features pass, A = 0."""

    def forward(
        self, potential: Tensor, spikes: Tensor, features: Tensor, initial_state: Tensor | None = None
    ) -> Attended:
        return (features, torch.zeros_like(features)), None


def _full(channels: int) -> nn.Module:
    return MembraneAttention(channels, ((channels, channels),))


def _low_rank(channels: int) -> nn.Module:
    rank = channels // RANK_DIVISOR
    return MembraneAttention(channels, ((rank, channels), (channels, rank)))


def _grouped(channels: int) -> nn.Module:
    width = channels // GROUPS
    return MembraneAttention(channels, ((GROUPS, width, width),))


def _sigmoid(channels: int) -> nn.Module:
    return MembraneAttention(channels, ((channels, channels),), sigmoid_attention)


ATTENTIONS: dict[str, Callable[[int], nn.Module]] = {
    "ds-mpa": _full,
    "low-rank": _low_rank,
    "grouped": _grouped,
    "sigmoid": _sigmoid,
    "gate": SigmoidGate,
    "none": lambda channels: NoAttention(),
}
