"""The spiking neurons with their learned parameters.

A neuron is a module made for a number of channels. Its `forward` reads currents [B, T, C, H, W] and gives
((spikes, membrane), final state): both outputs have the input's shape, the membrane potential is the one before reset.
The state is a dictionary of tensors [B, C, H, W]: all that a neuron remembers between two pieces of a recording.

To add a neuron, write such a class with `@register_neuron("name")`; the reference path runs it. A neuron whose step is
the one of `ops.norm_fire.Neuron` (leaky, or a rotating complex membrane) also runs on the kernels: it returns its
constants by channel from `constants`. `exportable = True` says that its forward can be traced by torch.export.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.registry import Registry
from ripe_mambaspike.nn.state import State
from ripe_mambaspike.ops.neurons import LIF_DECAY, LIF_THRESHOLD, Fired, csilif, csilif_pole, lif, silif, silif_decay
from ripe_mambaspike.ops.norm_fire import Neuron
from ripe_mambaspike.ops.shapes import at_least_float32

STEP = 0.004  # of every learned neuron, in units of its own time constants

NEURONS = Registry("neurons")
register_neuron = NEURONS.register


@register_neuron("lif")
class LIF(nn.Module):
    """Leaky integrate-and-fire without parameters."""

    exportable = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(
        self, x: Tensor, mode: ForwardMode = HARD, initial_state: State | None = None, keep_potential: bool = True
    ) -> tuple[Fired, State]:
        fired, membrane = lif(x, **_options(mode, keep_potential), initial_state=_membrane(initial_state))
        return fired, {"membrane": membrane}

    def constants(self, device: torch.device) -> Neuron:
        """Per channel, for the fused operators."""
        ones = torch.ones(self.channels, device=device)
        return Neuron(LIF_DECAY * ones, None, ones, LIF_THRESHOLD * ones)


@register_neuron("silif")
class SiLIF(nn.Module):
    """A low-pass neuron with three parameters per channel."""

    exportable = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.empty(channels).uniform_(math.log(10), math.log(250)))
        self.log_step = nn.Parameter(torch.full((channels,), math.log(STEP)))
        self.threshold = nn.Parameter(torch.ones(channels))

    def forward(
        self, x: Tensor, mode: ForwardMode = HARD, initial_state: State | None = None, keep_potential: bool = True
    ) -> tuple[Fired, State]:
        parameters = (self.log_rate, self.log_step, self.threshold)
        options = _options(mode, keep_potential)
        fired, membrane = silif(x, *parameters, **options, initial_state=_membrane(initial_state))
        return fired, {"membrane": membrane}

    def constants(self, device: torch.device) -> Neuron:
        """Per channel, for the fused operators."""
        decay = silif_decay(at_least_float32(self.log_rate), at_least_float32(self.log_step))
        return Neuron(decay, None, 1 - decay, at_least_float32(self.threshold))


@register_neuron("csilif")
class CSiLIF(nn.Module):
    """A resonating neuron with a complex membrane and five parameters per channel."""

    exportable = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_damping = nn.Parameter(torch.full((channels,), math.log(25)))
        self.frequency = nn.Parameter(torch.full((channels,), math.pi))
        self.log_step = nn.Parameter(torch.full((channels,), math.log(STEP)))
        self.gain = nn.Parameter(torch.ones(channels))
        self.threshold = nn.Parameter(torch.ones(channels))

    def forward(
        self, x: Tensor, mode: ForwardMode = HARD, initial_state: State | None = None, keep_potential: bool = True
    ) -> tuple[Fired, State]:
        parameters = (self.log_damping, self.frequency, self.log_step, self.gain, self.threshold)
        before = (initial_state["membrane"], initial_state["membrane_imag"]) if initial_state else None
        fired, (real, imag) = csilif(x, *parameters, **_options(mode, keep_potential), initial_state=before)
        return fired, {"membrane": real, "membrane_imag": imag}

    def constants(self, device: torch.device) -> Neuron:
        """Per channel, for the fused operators."""
        pole = csilif_pole(*map(at_least_float32, (self.log_damping, self.frequency, self.log_step)))
        return Neuron(*pole, at_least_float32(self.gain), at_least_float32(self.threshold))


def _membrane(state: State | None) -> Tensor | None:
    return state["membrane"] if state else None


def _options(mode: ForwardMode, keep_potential: bool) -> dict[str, Any]:
    return {"sharpness": mode.sharpness, "relaxed": mode.relaxed, "keep_potential": keep_potential}
