"""One spiking stage: two filtered convolutions, two neurons, and attention between them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode


class StageState(NamedTuple):
    """Everything a stage remembers from one step to the next."""

    first_input: Tensor
    first_neuron: Any
    second_input: Tensor
    attention: Tensor | None
    second_neuron: Any


class StageOutput(NamedTuple):
    spikes: Tensor  # of the second neuron [B, T, C, H, W]
    inner_spikes: Tensor  # of the first neuron, same shape
    attention: Tensor  # A, same shape
    state: StageState

    def rates(self) -> Tensor:
        """Mean firing rate of both neurons, first and second [2]."""
        return torch.stack([spikes.float().mean() for spikes in (self.inner_spikes, self.spikes)])


class SpikingStage(nn.Module):
    """conv → norm → neuron → conv → norm → attention → neuron; the forms of conv and norm are the caller's."""

    def __init__(
        self,
        first_conv: nn.Module,
        first_norm: nn.Module,
        first_neuron: nn.Module,
        second_conv: nn.Module,
        second_norm: nn.Module,
        attention: nn.Module,
        second_neuron: nn.Module,
    ) -> None:
        super().__init__()
        self.first_conv, self.first_norm, self.first_neuron = first_conv, first_norm, first_neuron
        self.second_conv, self.second_norm, self.second_neuron = second_conv, second_norm, second_neuron
        self.attention = attention

    def forward(
        self, x: Tensor, mode: ForwardMode = HARD, initial_state: StageState | None = None, first_step: int = 0
    ) -> StageOutput:
        state = initial_state or StageState(None, None, None, None, None)  # type: ignore[arg-type]
        current, first_input = self.first_conv(x, mode, state.first_input)
        current = self.first_norm(current, mode, first_step)
        (inner, potential), first_neuron = self.first_neuron(current, mode, state.first_neuron)
        current, second_input = self.second_conv(inner, mode, state.second_input)
        current = self.second_norm(current, mode, first_step)
        (current, attended), last_spikes = self.attention(potential, inner, current, state.attention)
        (spikes, _), second_neuron = self.second_neuron(current, mode, state.second_neuron, keep_potential=False)
        final = StageState(first_input, first_neuron, second_input, last_spikes, second_neuron)
        return StageOutput(spikes, inner, attended, final)
