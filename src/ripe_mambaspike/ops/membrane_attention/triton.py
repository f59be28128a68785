"""DS-MPA on NVIDIA GPUs: `attend`, its gradient, and together with the neuron that reads it."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.triton_backward import backward
from ripe_mambaspike.ops.membrane_attention.triton_fire import Firing, enough, modulate_fire
from ripe_mambaspike.ops.membrane_attention.triton_mix import mixture
from ripe_mambaspike.ops.membrane_attention.triton_modulate import modulate
from ripe_mambaspike.ops.membrane_attention.triton_plan import AttentionInputs, fused, fused_gradient
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
    return _attend(AttentionInputs(potential, spikes, features, scale, shift, query, key, value, gain), keep_attention)


def _attend(given: AttentionInputs, keep_attention: bool) -> tuple[Tensor, Tensor]:
    if fused(given.potential):
        return modulate(given, mixture(given), keep_attention)
    with torch.autocast(given.potential.device.type, enabled=False):
        return modulate_wide(given, keep_attention)


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
    given = AttentionInputs(potential, spikes, features, scale, shift, query, key, value, gain)
    with torch.autocast(potential.device.type, enabled=False):  # what it computes in is already decided
        return route(given, *grads)


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
    given = AttentionInputs(potential, spikes, features, scale, shift, query, key, value, gain)
    if fused(potential) and enough(potential):
        return modulate_fire(given, mixture(given), firing, keep_attention)[:3]
    from ripe_mambaspike.ops.norm_fire.triton import norm_fire

    current, attention = _attend(given, keep_attention)
    fired, _, operand = norm_fire(current, None, None, *firing[:7], False)
    return fired, operand, attention
