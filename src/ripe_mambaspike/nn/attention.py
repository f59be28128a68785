"""DS-MPA and its variants: attention between a stage's second convolution and its second neuron.

An attention is a module made for a number of channels. Its `forward` reads the first neuron's membrane potential and
spikes and the features to modulate, all [B, T, C, H, W], and gives ((modulated features, attention map), final state).

To add one, write such a class or a function of `channels` with `@register_attention("name")`. It runs on both paths:
between the fused operators the module is called as it is. `exportable = True` says that torch.export can trace it.
"""

import torch
from torch import Tensor, nn

from ripe_mambaspike.nn.registry import Registry
from ripe_mambaspike.nn.state import State
from ripe_mambaspike.ops.membrane_attention.reference import (
    EPSILON,
    Attention,
    Factors,
    convex_attention,
    ds_mpa,
    sigmoid_attention,
    sigmoid_gate,
)

Attended = tuple[tuple[Tensor, Tensor], State]

GROUPS = 4
RANK_DIVISOR = 4

ATTENTIONS = Registry("attention")
register_attention = ATTENTIONS.register


def _factor(*shape: int) -> nn.Parameter:
    """A projection [.., out, in] with PyTorch's default initialization of a 1×1 convolution."""
    bound = shape[-1] ** -0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class MembraneAttention(nn.Module):
    """DS-MPA with its three projections given as factors: one matrix, two thin ones, or one per group."""

    exportable = True

    def __init__(
        self, channels: int, shapes: tuple[tuple[int, ...], ...], attend: Attention = convex_attention
    ) -> None:
        super().__init__()
        self.query = nn.ParameterList(_factor(*shape) for shape in shapes)
        self.key = nn.ParameterList(_factor(*shape) for shape in shapes)
        self.value = nn.ParameterList(_factor(*shape) for shape in shapes)
        self.gain = nn.Parameter(torch.ones(channels))
        self.attend = attend
        self.feature_map, self.epsilon = "elu", EPSILON  # of the convex attention

    def projections(self) -> tuple[Factors, Factors, Factors]:
        return tuple(self.query), tuple(self.key), tuple(self.value)

    def forward(
        self, potential: Tensor, spikes: Tensor, features: Tensor, initial_state: State | None = None
    ) -> Attended:
        state = initial_state["spikes"].to(spikes.dtype).flatten(2) if initial_state else None
        (out, attention), _ = ds_mpa(
            potential.flatten(3),
            spikes.flatten(3),
            features.flatten(3),
            *self.projections(),
            self.gain,
            attend=self._attend,
            initial_state=state,
        )
        return (out.view_as(features), attention.view_as(features)), {"spikes": spikes[:, -1]}

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.attend is convex_attention:
            return convex_attention(query, key, value, feature_map=self.feature_map, epsilon=self.epsilon)
        return self.attend(query, key, value)


@register_attention("gate")
class SigmoidGate(nn.Module):
    """The study's cheap gate: a 1×1 convolution with bias and a sigmoid, multiplying the features."""

    exportable = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = _factor(channels, channels)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(
        self, potential: Tensor, spikes: Tensor, features: Tensor, initial_state: State | None = None
    ) -> Attended:
        out, gate = sigmoid_gate(potential.flatten(3), features.flatten(3), self.weight, self.bias)
        return (out.view_as(features), gate.view_as(features)), {}


@register_attention("none")
class NoAttention(nn.Module):
    """Ablation A1: the features pass unchanged, A = 0."""

    exportable = True

    def __init__(self, channels: int = 0) -> None:
        super().__init__()

    def forward(
        self, potential: Tensor, spikes: Tensor, features: Tensor, initial_state: State | None = None
    ) -> Attended:
        return (features, torch.zeros_like(features)), {}


@register_attention("ds-mpa")
def full_attention(channels: int) -> nn.Module:
    return MembraneAttention(channels, ((channels, channels),))


@register_attention("low-rank")
def low_rank_attention(channels: int) -> nn.Module:
    rank = channels // RANK_DIVISOR
    return MembraneAttention(channels, ((rank, channels), (channels, rank)))


@register_attention("grouped")
def grouped_attention(channels: int) -> nn.Module:
    width = channels // GROUPS
    return MembraneAttention(channels, ((GROUPS, width, width),))


@register_attention("sigmoid")
def unnormalized_attention(channels: int) -> nn.Module:
    return MembraneAttention(channels, ((channels, channels),), sigmoid_attention)


def make_attention(name: str, channels: int, *, feature_map: str = "elu", epsilon: float = EPSILON) -> nn.Module:
    """The attention of this name; φ and ε concern those that have them: ds-mpa, low-rank and grouped."""
    attention = ATTENTIONS.make(name, channels)
    if isinstance(attention, MembraneAttention) and attention.attend is convex_attention:
        attention.feature_map, attention.epsilon = feature_map, epsilon
    return attention
