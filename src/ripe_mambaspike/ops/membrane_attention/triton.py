"""DS-MPA on NVIDIA GPUs: `attend`, its gradient, and `attend_fire`, fused with the neuron after it."""

from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention import AttendFireInputs, AttendInputs
from ripe_mambaspike.ops.membrane_attention.triton_backward import backward
from ripe_mambaspike.ops.membrane_attention.triton_fire import fills_gpu, modulate_fire
from ripe_mambaspike.ops.membrane_attention.triton_mix import mixture
from ripe_mambaspike.ops.membrane_attention.triton_modulate import modulate
from ripe_mambaspike.ops.membrane_attention.triton_plan import AttentionInputs, fused, fused_gradient
from ripe_mambaspike.ops.membrane_attention.triton_wide import modulate_wide
from ripe_mambaspike.ops.membrane_attention.triton_wide_backward import backward_wide
from ripe_mambaspike.ops.norm_fire import NormFireInputs
from ripe_mambaspike.ops.norm_fire.triton import norm_fire
from ripe_mambaspike.ops.triton_launch import contiguous

MIN_ELEMENTS = 256  # below, gradients are computed in float32


def attend(i: AttendInputs) -> tuple[Tensor, Tensor]:
    """(modulated features, A or an empty tensor)."""
    return _attend(_kernel_inputs(i, i.gain), i.keep_attention)


def _attend(given: AttentionInputs, keep_attention: bool) -> tuple[Tensor, Tensor]:
    if fused(given.potential):
        return modulate(given, mixture(given), keep_attention)
    with torch.autocast(given.potential.device.type, enabled=False):
        return modulate_wide(given, keep_attention)


def _kernel_inputs(i: AttendInputs | AttendFireInputs, gain: Tensor) -> AttentionInputs:
    """The kernels' inputs; with a state the spikes are shifted, so that each step reads those of the step before."""
    spikes, shifted = i.spikes, i.input_spikes is not None
    if i.input_spikes is not None:
        spikes = torch.cat((i.input_spikes.unsqueeze(1).to(spikes.dtype), spikes[:, :-1]), 1)
    potential, spikes, features = (one.contiguous() for one in (i.potential, spikes, i.features))
    scale, shift = contiguous(i.scale, i.shift)
    query, key, value = (one.contiguous() for one in (i.query, i.key, i.value))
    return AttentionInputs(potential, spikes, features, scale, shift, query, key, value, gain, shifted)


def attend_backward(i: AttendInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Gradients in the order of the inputs; those of the spikes in the potential's dtype."""
    if i.potential.dtype == torch.bfloat16 and i.potential.numel() < MIN_ELEMENTS:
        # In small tensors rounding errors do not average out, and float32 costs nothing.
        found = attend_backward(AttendInputs(*map(_float, i)), tuple(map(_float, grads)))
        like = (i.potential, i.potential, i.features, i.gain, i.gain, i.query, i.key, i.value, i.gain)
        return tuple(grad.to(one.dtype) for grad, one in zip(found, like, strict=True))
    route = backward if fused_gradient(i.potential) else backward_wide
    with torch.autocast(i.potential.device.type, enabled=False):  # the dtype is already decided
        return route(_kernel_inputs(i, i.gain), *contiguous(*grads))


def attend_fire(i: AttendFireInputs) -> tuple[Tensor, ...]:
    """(spikes, operand, A or an empty tensor, the final states)."""
    given = _kernel_inputs(i, i.attention_gain)
    if fused(i.potential) and fills_gpu(i.potential):
        return modulate_fire(i, given, mixture(given))
    current, attention = _attend(given, i.keep_attention)
    inputs = NormFireInputs(current, None, None, i.firing, False, i.initial_state, i.output_final_state)
    fired, _, _, operand, *finals = norm_fire(inputs)
    return fired, operand, attention, *finals


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value
