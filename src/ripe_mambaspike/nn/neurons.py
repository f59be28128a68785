"""The spiking neurons with their learned parameters.

A neuron is a module made for a number of channels. Its `forward` reads currents [B, T, C, H, W] and gives
((spikes, membrane), final state): both outputs have the input's shape, the membrane potential is the one before reset.
The state is a dictionary of tensors [B, C, H, W], carried between two pieces of a recording.

To add a neuron, write such a class with `@register_neuron("name")`; the reference path runs it. A neuron whose step is
that of `ops.neurons.neuron_steps` (leaky, or a rotating complex membrane) also runs on the kernels: it derives from
`ConstantsNeuron` and returns its constants by channel. `exportable = True` says that torch.export can trace it.
"""

import math

import torch
from torch import Tensor, nn

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.registry import Registry
from ripe_mambaspike.nn.state import State
from ripe_mambaspike.ops.neurons import CSILIF_RESET, Fired, NeuronConstants, csilif, fire_over_time, lif, silif

STEP = 0.004  # of every learned neuron, in units of its own time constants

NEURONS = Registry("neurons")
register_neuron = NEURONS.register


class ConstantsNeuron(nn.Module):
    """A neuron defined by its constants per channel, which both the reference path and the kernels use."""

    exportable = True
    reset_factor: float = CSILIF_RESET  # κ of a rotating neuron; kernels know no other
    detach_reset: bool = False  # the reset outside the gradient graph; kernels have gradients for the other way

    def constants(self, device: torch.device) -> NeuronConstants:
        """Per channel [C], float32 or float64."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, mode: ForwardMode = HARD, initial_state: State | None = None, keep_potential: bool = True
    ) -> tuple[Fired, State]:
        before = (initial_state["membrane"], initial_state.get("membrane_imag")) if initial_state else None
        fired, (real, imag) = fire_over_time(
            x,
            self.constants(x.device),
            sharpness=mode.sharpness,
            relaxed=mode.relaxed,
            keep_potential=keep_potential,
            initial_state=before,
            reset=self.reset_factor,
            detach_reset=self.detach_reset,
        )
        return fired, {"membrane": real} if imag is None else {"membrane": real, "membrane_imag": imag}


@register_neuron("lif")
class LIF(ConstantsNeuron):
    """Leaky integrate-and-fire without parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def constants(self, device: torch.device) -> NeuronConstants:
        return lif(self.channels, device)


@register_neuron("silif")
class SiLIF(ConstantsNeuron):
    """A low-pass neuron with three parameters per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.empty(channels).uniform_(math.log(10), math.log(250)))
        self.log_step = nn.Parameter(torch.full((channels,), math.log(STEP)))
        self.threshold = nn.Parameter(torch.ones(channels))

    def constants(self, device: torch.device) -> NeuronConstants:
        return silif(self.log_rate, self.log_step, self.threshold)


@register_neuron("csilif")
class CSiLIF(ConstantsNeuron):
    """A resonating neuron with a complex membrane and five parameters per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_damping = nn.Parameter(torch.full((channels,), math.log(25)))
        self.frequency = nn.Parameter(torch.full((channels,), math.pi))
        self.log_step = nn.Parameter(torch.full((channels,), math.log(STEP)))
        self.gain = nn.Parameter(torch.ones(channels))
        self.threshold = nn.Parameter(torch.ones(channels))

    def constants(self, device: torch.device) -> NeuronConstants:
        return csilif(self.log_damping, self.frequency, self.log_step, self.gain, self.threshold)


def make_neuron(
    name: str, channels: int, *, csilif_reset: float = CSILIF_RESET, detach_reset: bool = False
) -> nn.Module:
    """The neuron of this name with the config's reset; `csilif_reset` concerns the CSiLIF alone."""
    neuron = NEURONS.make(name, channels)
    if detach_reset and type(neuron).forward is not ConstantsNeuron.forward:
        raise ConfigError.expected("detach_reset", f"false, since the neuron '{name}' has a reset of its own", True)
    if isinstance(neuron, CSiLIF):
        neuron.reset_factor = csilif_reset
    if isinstance(neuron, ConstantsNeuron):
        neuron.detach_reset = detach_reset
    return neuron
