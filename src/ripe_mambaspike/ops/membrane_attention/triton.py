"""DS-MPA on NVIDIA GPUs: `attend`, its gradient, and together with the neuron that reads it."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.triton_backward import backward
from ripe_mambaspike.ops.membrane_attention.triton_fire import Firing, enough, modulate_fire
from ripe_mambaspike.ops.membrane_attention.triton_mix import mixture
from ripe_mambaspike.ops.membrane_attention.triton_modulate import modulate
from ripe_mambaspike.ops.membrane_attention.triton_plan import fused, fused_gradient
from ripe_mambaspike.ops.membrane_attention.triton_wide import modulate_wide
from ripe_mambaspike.ops.membrane_attention.triton_wide_backward import backward_wide

FEW = 256  # numbers in a tensor


def attend(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gain: Tensor,
    keep_attention: bool,
) -> tuple[Tensor, Tensor]:
    """(modulated features, A or an empty tensor)."""
    if fused(potential):
        mixed = mixture(potential, spikes, key, value)
        return modulate(potential, features, scale, shift, query, gain, mixed, keep_attention)
    with torch.autocast(potential.device.type, enabled=False):
        return modulate_wide(potential, spikes, features, scale, shift, query, key, value, gain, keep_attention)


def attend_backward(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gain: Tensor,
    grad_out: Tensor | None,
    grad_attention: Tensor | None,
) -> tuple[Tensor, ...]:
    """Gradients of everything but the last two, in their order; those of the spikes in the potential's precision."""
    if potential.dtype == torch.bfloat16 and potential.numel() < FEW:
        # Over a handful of numbers the rounding of one is not averaged away, and float32 costs nothing.
        tensors = (potential, spikes, features, scale, shift, query, key, value, gain, grad_out, grad_attention)
        wide = (t.float() if t is not None and t.dtype == torch.bfloat16 else t for t in tensors)
        found = attend_backward(*wide)  # type: ignore[arg-type]
        like = (potential, potential, features, gain, gain, query, key, value, gain)
        return tuple(grad.to(one.dtype) for grad, one in zip(found, like, strict=True))
    grads = (None if grad is None else grad.contiguous() for grad in (grad_out, grad_attention))
    route = backward if fused_gradient(potential) else backward_wide
    with torch.autocast(potential.device.type, enabled=False):  # what it computes in is already decided
        return route(potential, spikes, features, scale, shift, query, key, value, gain, *grads)


def attend_fire(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gain: Tensor,
    decay: Tensor,
    rotation: Tensor | None,
    drive: Tensor,
    threshold: Tensor,
    coefficient: Tensor | None,
    relaxed: bool,
    sharpness: float,
    keep_attention: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(spikes, operand, A or an empty tensor)."""
    firing = Firing(decay, rotation, drive, threshold, coefficient, relaxed, sharpness)
    if fused(potential) and enough(potential):
        mixed = mixture(potential, spikes, key, value)
        return modulate_fire(potential, features, scale, shift, query, gain, mixed, firing, keep_attention)
    from ripe_mambaspike.ops.norm_fire.triton import norm_fire

    weights = (query, key, value, gain)
    current, attention = attend(potential, spikes, features, scale, shift, *weights, keep_attention)
    fired, _, operand = norm_fire(current, None, None, *firing, False)
    return fired, operand, attention
