"""The neurons: the per-channel constants of each, and one function that runs any of them over all steps.

    u_t = decay · u_{t−1} + gain · x_t, fire where u_t ≥ threshold, subtract the threshold     LIF, SiLIF
    m_t = (decay + j rotation) · m_{t−1} + gain · x_t, u_t = 2 Re m_t, a spike takes κ off m    CSiLIF

Glossary: u the membrane potential before the reset; κ the reset factor, 1/2 unless given; B samples, T steps, C
channels. Reset is soft, and inside the gradient graph unless detached. States are float32 or float64 whatever the
input's precision.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.graph_nodes import graph_node, keeps_node
from ripe_mambaspike.ops.shapes import at_least_float32, per_channel
from ripe_mambaspike.ops.spikes import fire_at, fire_fast_sigmoid

Fired = tuple[Tensor, Tensor | None]
Membrane = tuple[Tensor, Tensor | None]  # after the reset: real and, of a rotating neuron, imaginary part

LIF_DECAY = 0.5
LIF_THRESHOLD = 1.0
CSILIF_RESET = 0.5  # κ


class NeuronConstants(NamedTuple):
    """A neuron by the constants of its step, per channel [C], float32; without rotation the membrane is real."""

    decay: Tensor
    rotation: Tensor | None
    gain: Tensor
    threshold: Tensor


def lif(channels: int, device: torch.device | None = None) -> NeuronConstants:
    """Leaky integrate-and-fire: `u ← u/2 + x`, fire at 1, subtract 1. No parameters."""
    ones = torch.ones(channels, device=device)
    return NeuronConstants(LIF_DECAY * ones, None, ones, LIF_THRESHOLD * ones)


def silif(log_rate: Tensor, log_step: Tensor, threshold: Tensor) -> NeuronConstants:
    """Learnable low-pass neuron: `u ← βu + (1−β)x`, fire at v, subtract v."""
    decay = silif_decay(at_least_float32(log_rate), at_least_float32(log_step))
    return NeuronConstants(decay, None, 1 - decay, at_least_float32(threshold))


def silif_decay(log_rate: Tensor, log_step: Tensor) -> Tensor:
    """β of the SiLIF: `exp(−exp(max(a, 0)) · exp(d))`."""
    return torch.exp(-torch.exp(log_rate.clamp(min=0)) * torch.exp(log_step))


def csilif(
    log_damping: Tensor, frequency: Tensor, log_step: Tensor, gain: Tensor, threshold: Tensor
) -> NeuronConstants:
    """Resonating neuron: `m ← α(m − κs) + bx`, potential `U = 2 Re m`, fire at v."""
    pole = csilif_pole(*map(at_least_float32, (log_damping, frequency, log_step)))
    return NeuronConstants(*pole, at_least_float32(gain), at_least_float32(threshold))


def csilif_pole(log_damping: Tensor, frequency: Tensor, log_step: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of `α = exp((−e^ℓ + jω) e^τ)`; |α| < 1, or rounds to 1 where e^(ℓ+τ) is tiny."""
    step = torch.exp(log_step)
    magnitude = torch.exp(-torch.exp(log_damping) * step)
    return magnitude * torch.cos(frequency * step), magnitude * torch.sin(frequency * step)


def fire_over_time(
    x: Tensor,
    neuron: NeuronConstants,
    *,
    sharpness: float = 2.0,
    relaxed: bool = False,
    keep_potential: bool = True,
    initial_state: Membrane | None = None,
    reset: float = CSILIF_RESET,
    detach_reset: bool = False,
) -> tuple[Fired, Membrane]:
    """x [B, T, C, ...] through all steps of a neuron → ((spikes, potential), final state); the state [B, C, ...].

    Spikes and potential have x's shape and dtype; the potential is the one before reset, None unless requested. `reset`
    is κ of a rotating neuron. With `detach_reset` no gradient flows through what a spike takes off the membrane.
    """
    decay, rotation, gain, threshold = neuron
    if keeps_node("fire") and not relaxed:
        real, imag = (None, None) if initial_state is None else initial_state
        spikes, potential, real, imag = fire_node(x, decay, rotation, gain, threshold, real, imag, reset)
        return (spikes, potential if keep_potential else None), (real, None if rotation is None else imag)
    shaped = NeuronConstants(
        *(per_channel(decay, x.ndim - 3), None if rotation is None else per_channel(rotation, x.ndim - 3)),
        *(per_channel(gain, x.ndim - 3), per_channel(threshold, x.ndim - 3)),
    )
    spikes, potentials, state = neuron_steps(x, shaped, sharpness, relaxed, initial_state, reset, detach_reset)
    potential = torch.stack(potentials, 1).to(x.dtype) if keep_potential else None
    return (torch.stack(spikes, 1).to(x.dtype), potential), state


def _empty_fired(x: Tensor, *constants: object) -> tuple[Tensor, ...]:
    state = at_least_float32(x[:, 0])
    return torch.empty_like(x), torch.empty_like(x), torch.empty_like(state), torch.empty_like(state)


@graph_node("fire", _empty_fired)
def fire_node(
    x: Tensor,
    decay: Tensor,
    rotation: Tensor | None,
    gain: Tensor,
    threshold: Tensor,
    real: Tensor | None,
    imag: Tensor | None,
    reset: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`fire_over_time` → (spikes, potential, final real part, final imaginary part: zeros without rotation)."""
    neuron, state = NeuronConstants(decay, rotation, gain, threshold), None if real is None else (real, imag)
    (spikes, potential), (left, turned) = fire_over_time(x, neuron, initial_state=state, reset=reset)
    assert potential is not None
    return spikes, potential, left, torch.zeros_like(left) if turned is None else turned


def neuron_steps(
    x: Tensor,
    neuron: NeuronConstants,
    sharpness: float,
    relaxed: bool,
    state: Membrane | None,
    reset: float = CSILIF_RESET,
    detach_reset: bool = False,
) -> tuple[list[Tensor], list[Tensor], Membrane]:
    """Spikes and potentials of every step of x [B, T, ...], and the final state; the constants broadcast to x_t."""
    decay, rotation, gain, threshold = neuron
    zeros = torch.zeros_like(at_least_float32(x[:, 0]))
    real, imag = (zeros, zeros) if state is None else (state[0], zeros if state[1] is None else state[1])
    spikes, potentials = [], []
    for x_t in x.unbind(1):
        if rotation is None:
            potential = torch.addcmul(gain * x_t, decay, real)
            spike = fire_at(potential, threshold, sharpness, relaxed)
            taken = (spike.detach(), threshold.detach()) if detach_reset else (spike, threshold)
            real = torch.addcmul(potential, *taken, value=-1)
        else:
            real, imag = (
                torch.addcmul(torch.addcmul(gain * x_t, decay, real), rotation, imag, value=-1),
                torch.addcmul(decay * imag, rotation, real),
            )
            potential = 2 * real
            spike = fire_at(potential, threshold, sharpness, relaxed)
            real = torch.sub(real, spike.detach() if detach_reset else spike, alpha=reset)
        spikes.append(spike)
        potentials.append(potential)
    return spikes, potentials, (real, None if rotation is None else imag)


def recurrent_leaky_step(
    drive: Tensor, potential: Tensor, decay: float, threshold: float = 1.0, slope: float = 25.0
) -> tuple[Tensor, Tensor]:
    """One step of the baseline's Leaky: the reset belongs to the previous step's potential, outside the graph.

    drive and potential [B, C, ...]; returns (spikes, potential), the potential in float32 at least.
    """
    potential = at_least_float32(potential)
    reset = (potential > threshold).to(potential.dtype)
    potential = decay * potential + drive - reset * threshold
    if torch.compiler.is_exporting():  # as in `_fire`
        return (potential > threshold).to(drive.dtype), potential
    return fire_fast_sigmoid(potential - threshold, slope).to(drive.dtype), potential
