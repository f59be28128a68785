"""The neurons, each a pure function over all steps with its state in and out.

All read `x [B, T, C, ...]`, keep per-channel parameters `[C]`, reset softly inside the graph, and return
`((spikes, potential), final_state)`; both outputs have x's shape and the potential is the one before reset, or None
with `keep_potential=False`. States are float32 or float64 whatever the input's precision.
"""

import torch
from torch import Tensor

from ripe_mambaspike.ops.shapes import at_least_float32, per_channel
from ripe_mambaspike.ops.spikes import fire, fire_fast_sigmoid

Fired = tuple[Tensor, Tensor | None]

LIF_DECAY = 0.5
LIF_THRESHOLD = 1.0
CSILIF_RESET = 0.5


def lif(
    x: Tensor,
    *,
    sharpness: float = 2.0,
    relaxed: bool = False,
    keep_potential: bool = True,
    initial_state: Tensor | None = None,
) -> tuple[Fired, Tensor]:
    """Leaky integrate-and-fire: `u ← u/2 + x`, fire at 1, subtract 1. No parameters. State u [B, C, ...]."""
    like = at_least_float32(x[:, 0])
    decay, gain, threshold = (like.new_tensor(value) for value in (LIF_DECAY, 1.0, LIF_THRESHOLD))
    return leaky(x, decay, gain, threshold, sharpness, relaxed, keep_potential, initial_state)


def silif_decay(log_rate: Tensor, log_step: Tensor) -> Tensor:
    """β of the SiLIF: `exp(−exp(max(a, 0)) · exp(d))`."""
    return torch.exp(-torch.exp(log_rate.clamp(min=0)) * torch.exp(log_step))


def silif(
    x: Tensor,
    log_rate: Tensor,
    log_step: Tensor,
    threshold: Tensor,
    *,
    sharpness: float = 2.0,
    relaxed: bool = False,
    keep_potential: bool = True,
    initial_state: Tensor | None = None,
) -> tuple[Fired, Tensor]:
    """Learnable low-pass neuron: `u ← βu + (1−β)x`, fire at v, subtract v. State u [B, C, ...]."""
    trailing = x.ndim - 3
    decay = per_channel(silif_decay(*map(at_least_float32, (log_rate, log_step))), trailing)
    level = per_channel(at_least_float32(threshold), trailing)
    return leaky(x, decay, 1 - decay, level, sharpness, relaxed, keep_potential, initial_state)


def csilif_pole(log_damping: Tensor, frequency: Tensor, log_step: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of `α = exp((−e^ℓ + jω) e^τ)`; |α| < 1, or rounds to 1 where e^(ℓ+τ) is tiny."""
    step = torch.exp(log_step)
    magnitude = torch.exp(-torch.exp(log_damping) * step)
    return magnitude * torch.cos(frequency * step), magnitude * torch.sin(frequency * step)


def csilif(
    x: Tensor,
    log_damping: Tensor,
    frequency: Tensor,
    log_step: Tensor,
    gain: Tensor,
    threshold: Tensor,
    *,
    sharpness: float = 2.0,
    relaxed: bool = False,
    keep_potential: bool = True,
    initial_state: tuple[Tensor, Tensor] | None = None,
) -> tuple[Fired, tuple[Tensor, Tensor]]:
    """Resonating neuron: `m ← α(m − s/2) + bx`, potential `U = 2 Re m`, fire at v.

    State (Re m, Im m) after the reset, each [B, C, ...].
    """
    parameters = (log_damping, frequency, log_step, gain, threshold)
    log_damping, frequency, log_step, gain, threshold = map(at_least_float32, parameters)
    pole = csilif_pole(log_damping, frequency, log_step)
    constants = (per_channel(value, x.ndim - 3) for value in (*pole, gain, threshold))
    return resonating(x, *constants, sharpness, relaxed, keep_potential, initial_state)


def resonating(
    x: Tensor,
    pole_re: Tensor,
    pole_im: Tensor,
    gain: Tensor,
    level: Tensor,
    sharpness: float = 2.0,
    relaxed: bool = False,
    keep_potential: bool = True,
    initial_state: tuple[Tensor, Tensor] | None = None,
) -> tuple[Fired, tuple[Tensor, Tensor]]:
    """The resonating neuron by its constants, each of a shape that broadcasts over a step of x."""
    if initial_state is None:
        real = imag = torch.zeros_like(at_least_float32(x[:, 0]))
    else:
        real, imag = initial_state
    spikes, potentials = [], []
    for x_t in x.unbind(1):
        real, imag = (
            torch.addcmul(torch.addcmul(gain * x_t, pole_re, real), pole_im, imag, value=-1),
            torch.addcmul(pole_re * imag, pole_im, real),
        )
        potential = 2 * real
        spike = _fire(potential, level, sharpness, relaxed)
        real = torch.sub(real, spike, alpha=CSILIF_RESET)
        spikes.append(spike)
        potentials.append(potential)
    return _over_time(spikes, potentials if keep_potential else None, x.dtype), (real, imag)


def recurrent_leaky_step(
    drive: Tensor, potential: Tensor, decay: float, threshold: float = 1.0, slope: float = 25.0
) -> tuple[Tensor, Tensor]:
    """One step of the baseline's Leaky: the reset belongs to the previous step's potential, outside the graph.

    drive and potential [B, C, ...]; returns (spikes, potential), the potential in float32 at least.
    """
    potential = at_least_float32(potential)
    reset = (potential > threshold).to(potential.dtype)
    potential = decay * potential + drive - reset * threshold
    return fire_fast_sigmoid(potential - threshold, slope).to(drive.dtype), potential


def leaky(
    x: Tensor,
    decay: Tensor,
    gain: Tensor,
    threshold: Tensor,
    sharpness: float = 2.0,
    relaxed: bool = False,
    keep_potential: bool = True,
    initial_state: Tensor | None = None,
) -> tuple[Fired, Tensor]:
    """`u ← decay·u + gain·x`, fire at the threshold, subtract it; constants that broadcast over a step of x."""
    left = torch.zeros_like(at_least_float32(x[:, 0])) if initial_state is None else initial_state
    spikes, potentials = [], []
    for x_t in x.unbind(1):
        potential = torch.addcmul(gain * x_t, decay, left)
        spike = _fire(potential, threshold, sharpness, relaxed)
        left = torch.addcmul(potential, spike, threshold, value=-1)
        spikes.append(spike)
        potentials.append(potential)
    return _over_time(spikes, potentials if keep_potential else None, x.dtype), left


def _fire(potential: Tensor, threshold: Tensor, sharpness: float, relaxed: bool) -> Tensor:
    """Spikes where the potential reaches the threshold."""
    if torch.compiler.is_exporting():  # compared directly: a runtime may flush a tiny difference to zero
        return (potential >= threshold).to(potential.dtype)
    return fire(potential - threshold, sharpness, relaxed)


def _over_time(spikes: list[Tensor], potentials: list[Tensor] | None, dtype: torch.dtype) -> Fired:
    potential = None if potentials is None else torch.stack(potentials, 1).to(dtype)
    return torch.stack(spikes, 1).to(dtype), potential
