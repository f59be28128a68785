"""The leaky integrate-and-fire neuron that published spiking networks are built from."""

import math

import torch
from torch import Tensor, nn

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.nn.spike_log import log_spikes
from ripe_mambaspike.nn.state import State
from ripe_mambaspike.ops.leaky_fire import leaky_fire
from ripe_mambaspike.ops.shapes import sum_dtype
from ripe_mambaspike.ops.spikes import SLOPES

TAU = 2.0  # time constant in steps, as SpikingJelly's
THRESHOLD = 1.0
SHARPNESS = 2.0  # of the surrogate gradient


class LeakyNeuron(nn.Module):
    """x [B, T, ...] → (spikes [B, T, ...], state), for any trailing dimensions and without a size of its own.

        u_t = v_{t−1} + (x_t − v_{t−1}) / τ     with `decay_input`, as SpikingJelly's LIFNode, or
        u_t = (1 − 1/τ) · v_{t−1} + x_t         without
        s_t = 1 where u_t ≥ threshold
        v_t = u_t · (1 − s_t)                   with `hard_reset`, or
        v_t = u_t − threshold · s_t             without

    `detach_reset`: no gradient through the s_t of the reset. `surrogate`: the slope of s_t, by its name in
    `ops.spikes.SLOPES`, at `sharpness`. `learn_tau`: 1/τ = σ(w) with the one parameter w (PLIF; SpikingJelly's
    ParametricLIFNode). An infinite τ without `decay_input` does not leak (SpikingJelly's IFNode).

    The state, {"membrane": v_T [B, ...]} in float32 at least, continues the neuron as the next `initial_state`.
    """

    def __init__(
        self,
        tau: float = TAU,
        threshold: float = THRESHOLD,
        decay_input: bool = True,
        hard_reset: bool = True,
        detach_reset: bool = True,
        surrogate: str = "atan",
        sharpness: float = SHARPNESS,
        learn_tau: bool = False,
    ) -> None:
        super().__init__()
        if not tau > 1 or (math.isinf(tau) and (decay_input or learn_tau)):
            raise ConfigError.expected("tau", "a number of steps above 1", tau)
        if surrogate not in SLOPES:
            raise ConfigError.expected("surrogate", f"one of {', '.join(SLOPES)}", repr(surrogate))
        if not sharpness > 0:
            raise ConfigError.expected("sharpness", "a number above 0", sharpness)
        self.tau, self.threshold, self.decay_input = tau, threshold, decay_input
        self.hard_reset, self.detach_reset = hard_reset, detach_reset
        self.surrogate, self.sharpness = surrogate, sharpness
        self.w = nn.Parameter(torch.tensor(-math.log(tau - 1))) if learn_tau else None

    def constants(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(decay, gain) of the step, one element each, on x's device."""
        dtype = sum_dtype(x)
        if self.w is None:
            values = (1 - 1 / self.tau, 1 / self.tau if self.decay_input else 1.0)
            decay, gain = (torch.full((), value, dtype=dtype, device=x.device) for value in values)
            return decay, gain
        share = torch.sigmoid(self.w.to(dtype))
        return 1 - share, share if self.decay_input else torch.ones_like(share)

    def forward(self, x: Tensor, initial_state: State | None = None) -> tuple[Tensor, State]:
        spikes, membrane = leaky_fire(
            x,
            *self.constants(x),
            threshold=self.threshold,
            hard_reset=self.hard_reset,
            detach_reset=self.detach_reset,
            surrogate=self.surrogate,
            sharpness=self.sharpness,
            initial_state=initial_state["membrane"] if initial_state else None,
        )
        log_spikes(self, spikes)
        return spikes, {"membrane": membrane}

    def extra_repr(self) -> str:
        names = ("tau", "threshold", "decay_input", "hard_reset", "detach_reset", "surrogate", "sharpness")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names) + f", learn_tau={self.w is not None}"
