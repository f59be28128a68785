"""DS-MPA on NVIDIA GPUs: `attend`, its gradient, and together with the neuron that reads it."""

from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention import AttendFireInputs, AttendInputs
from ripe_mambaspike.ops.membrane_attention.triton_backward import backward
from ripe_mambaspike.ops.membrane_attention.triton_fire import Firing, enough, modulate_fire
from ripe_mambaspike.ops.membrane_attention.triton_mix import mixture
from ripe_mambaspike.ops.membrane_attention.triton_modulate import modulate
from ripe_mambaspike.ops.membrane_attention.triton_plan import fused, fused_gradient
from ripe_mambaspike.ops.membrane_attention.triton_wide import modulate_wide
from ripe_mambaspike.ops.membrane_attention.triton_wide_backward import backward_wide
from ripe_mambaspike.ops.norm_fire import NormFireInputs, empty_finals

MIN_NUMBERS = 256  # numbers in a tensor


def attend(i: AttendInputs) -> tuple[Tensor, Tensor]:
    """(modulated features, A or an empty tensor)."""
    potential, spikes, _, features, scale, shift, query, key, value, gain, keep_attention, _ = i
    if fused(potential):
        mixed = mixture(potential, spikes, key, value)
        return modulate(potential, features, scale, shift, query, gain, mixed, keep_attention)
    with torch.autocast(potential.device.type, enabled=False):
        return modulate_wide(potential, spikes, features, scale, shift, query, key, value, gain, keep_attention)


def attend_backward(i: AttendInputs, arriving: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Gradients in the order of the inputs; those of the spikes in the potential's precision."""
    potential, spikes, _, features, scale, shift, query, key, value, gain, *_ = i
    grad_out, grad_attention = arriving
    if potential.dtype == torch.bfloat16 and potential.numel() < MIN_NUMBERS:
        # Over a handful of numbers the rounding of one is not averaged away, and float32 costs nothing.
        wide = AttendInputs(*map(_float, i))
        found = attend_backward(wide, (_float(grad_out), _float(grad_attention)))
        like = (potential, potential, features, gain, gain, query, key, value, gain)
        return tuple(grad.to(one.dtype) for grad, one in zip(found, like, strict=True))
    grads = (None if grad is None else grad.contiguous() for grad in (grad_out, grad_attention))
    route = backward if fused_gradient(potential) else backward_wide
    with torch.autocast(potential.device.type, enabled=False):  # what it computes in is already decided
        return route(potential, spikes, features, scale, shift, query, key, value, gain, *grads)


def attend_fire(i: AttendFireInputs) -> tuple[Tensor, ...]:
    """(spikes, operand, A or an empty tensor, the final states)."""
    potential, spikes, features, scale, shift, query, key, value, gain = i[:9]
    firing = Firing(*i[9:16])
    if fused(potential) and enough(potential):
        mixed = mixture(potential, spikes, key, value)
        found = modulate_fire(potential, features, scale, shift, query, gain, mixed, firing, i.keep_attention)
        return *found, *empty_finals(i, features)
    from ripe_mambaspike.ops.norm_fire.triton import norm_fire

    weights = (query, key, value, gain)
    current, attention = attend(
        AttendInputs(potential, spikes, potential, features, scale, shift, *weights, i.keep_attention, i.input_spikes)
    )
    state = (i.membrane, i.membrane_imag, i.last_spikes, i.output_final_state)
    fired, _, _, operand, *finals = norm_fire(NormFireInputs(current, None, None, *firing, False, *state))
    return fired, operand, attention, *finals


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value
