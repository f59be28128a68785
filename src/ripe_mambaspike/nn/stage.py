"""One spiking stage: two filtered convolutions, two neurons, and attention between them."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.state import Names, State, Step, below, prefixed

OBSERVABLE = ("spikes", "spike_counts", "membrane", "attention", "inputs")  # what `observe` can request


class StageOutput(NamedTuple):
    spikes: Tensor  # of the second neuron [B, T, C, H, W]
    inner_spikes: Tensor  # of the first neuron, same shape
    attention: Tensor  # A, same shape
    state: State
    observed: dict[str, Tensor]  # what was requested, by the module's name in the stage

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
        self, x: Tensor, mode: ForwardMode = HARD, state: State | None = None, first_step: Step = 0, observe: Names = ()
    ) -> StageOutput:
        """x [B, T, C_in, H, W], the steps of a recording from `first_step` on (an int, or one per row)."""
        final: State = {}

        def run(name: str, *inputs: Any, **options: Any) -> Any:
            """Call a stateful module with its part of the state, and collect its final state."""
            out, left = getattr(self, name)(*inputs, initial_state=below(state, name), **options)
            final.update(prefixed(name, left))
            return out

        current = self.first_norm(run("first_conv", x, mode), mode, first_step)
        inner, potential = run("first_neuron", current, mode)
        current = self.second_norm(run("second_conv", inner, mode), mode, first_step)
        current, attended = run("attention", potential, inner, current)
        spikes, level = run("second_neuron", current, mode, keep_potential="membrane" in observe)
        seen = {
            "spikes": {"first_neuron.spikes": inner, "second_neuron.spikes": spikes},
            "membrane": {"first_neuron.membrane": potential, "second_neuron.membrane": level},
            "attention": {"attention": attended},
            "inputs": {"first_conv.input": x, "second_conv.input": inner},
        }
        observed = {key: value for name in observe for key, value in seen.get(name, {}).items()}
        if "spike_counts" in observe:
            counted = {"first_neuron": inner, "second_neuron": spikes}
            observed |= {f"{name}.spike_counts": count_spikes(value) for name, value in counted.items()}
        return StageOutput(spikes, inner, attended, final, observed)


def count_spikes(spikes: Tensor) -> Tensor:
    """The number of spikes of each sample [B], int64."""
    rows = spikes.flatten(1)
    if rows.dtype == torch.uint8 and rows.device.type == "cpu":
        return torch.tensor([np.count_nonzero(row) for row in rows.numpy()])
    exact = torch.float32 if rows.dtype == torch.uint8 and rows.shape[1] < 2**24 else torch.float64
    return rows.to(exact).sum(1).round().long()  # summing bytes is eight times slower
