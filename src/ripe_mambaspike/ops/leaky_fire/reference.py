"""The leaky neuron in plain PyTorch, differentiable, in any precision."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.leaky_fire import LeakyFireInputs
from ripe_mambaspike.ops.shapes import at_least_float32, sum_dtype
from ripe_mambaspike.ops.spikes import fire_as


def leaky_fire(i: LeakyFireInputs) -> tuple[Tensor, Tensor]:
    """(spikes, membrane after the last reset); x [B, T, ...] of any shape, the state [B, ...]."""
    dtype = sum_dtype(i.x)
    decay, gain = (one.to(dtype).reshape(()) for one in (i.decay, i.gain))
    state = i.initial_state
    membrane = torch.zeros_like(i.x[:, 0], dtype=dtype) if state is None else state.to(dtype)
    spikes = []
    for x_t in i.x.unbind(1):
        potential = torch.addcmul(gain * at_least_float32(x_t), decay, membrane)
        if torch.compiler.is_exporting():  # compared directly: a runtime may flush a tiny difference to zero
            spike = (potential >= i.threshold).to(dtype)
        else:
            spike = fire_as(i.surrogate, potential - i.threshold, i.sharpness)
        reset = spike.detach() if i.detach_reset else spike
        membrane = potential * (1 - reset) if i.hard_reset else potential - i.threshold * reset
        spikes.append(spike)
    return torch.stack(spikes, 1).to(i.x.dtype), membrane
