"""The three neurons with their learned parameters."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.ops.neurons import LIF_DECAY, LIF_THRESHOLD, Fired, csilif, csilif_pole, lif, silif, silif_decay
from ripe_mambaspike.ops.norm_fire import Neuron
from ripe_mambaspike.ops.shapes import at_least_float32

STEP = 0.004  # of every learned neuron, in units of its own time constants


class LIF(nn.Module):
    """No parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(
        self, x: Tensor, mode: ForwardMode = HARD, initial_state: Any = None, keep_potential: bool = True
    ) -> tuple[Fired, Any]:
        return lif(x, **_options(mode, initial_state, keep_potential))

    def constants(self, device: torch.device) -> Neuron:
        """Per channel, for the fused operators."""
        ones = torch.ones(self.channels, device=device)
        return Neuron(LIF_DECAY * ones, None, ones, LIF_THRESHOLD * ones)


class SiLIF(nn.Module):
    """Three parameters a channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.empty(channels).uniform_(math.log(10), math.log(250)))
        self.log_step = nn.Parameter(torch.full((channels,), math.log(STEP)))
        self.threshold = nn.Parameter(torch.ones(channels))

    def forward(
        self, x: Tensor, mode: ForwardMode = HARD, initial_state: Any = None, keep_potential: bool = True
    ) -> tuple[Fired, Any]:
        parameters = (self.log_rate, self.log_step, self.threshold)
        return silif(x, *parameters, **_options(mode, initial_state, keep_potential))

    def constants(self, device: torch.device) -> Neuron:
        """Per channel, for the fused operators."""
        decay = silif_decay(at_least_float32(self.log_rate), at_least_float32(self.log_step))
        return Neuron(decay, None, 1 - decay, at_least_float32(self.threshold))


class CSiLIF(nn.Module):
    """Five parameters a channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_damping = nn.Parameter(torch.full((channels,), math.log(25)))
        self.frequency = nn.Parameter(torch.full((channels,), math.pi))
        self.log_step = nn.Parameter(torch.full((channels,), math.log(STEP)))
        self.gain = nn.Parameter(torch.ones(channels))
        self.threshold = nn.Parameter(torch.ones(channels))

    def forward(
        self, x: Tensor, mode: ForwardMode = HARD, initial_state: Any = None, keep_potential: bool = True
    ) -> tuple[Fired, Any]:
        parameters = (self.log_damping, self.frequency, self.log_step, self.gain, self.threshold)
        return csilif(x, *parameters, **_options(mode, initial_state, keep_potential))

    def constants(self, device: torch.device) -> Neuron:
        """Per channel, for the fused operators."""
        pole = csilif_pole(*map(at_least_float32, (self.log_damping, self.frequency, self.log_step)))
        return Neuron(*pole, at_least_float32(self.gain), at_least_float32(self.threshold))


NEURONS: dict[str, Callable[[int], nn.Module]] = {"lif": LIF, "silif": SiLIF, "csilif": CSiLIF}


def _options(mode: ForwardMode, initial_state: Any, keep_potential: bool) -> dict[str, Any]:
    return {
        "sharpness": mode.sharpness,
        "relaxed": mode.relaxed,
        "keep_potential": keep_potential,
        "initial_state": initial_state,
    }
