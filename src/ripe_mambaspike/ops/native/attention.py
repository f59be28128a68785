"""DS-MPA, and DS-MPA with the neuron that reads it, by the C++ operators."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.native.calling import call, dense
from ripe_mambaspike.ops.native.neurons import affine, is_brain


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
    """[B, T, P, C] three times → (modulated features, A or an empty tensor)."""
    inputs = _inputs(potential, spikes, features, scale, shift, query, key, value, gain)
    out = torch.empty_like(inputs[2])
    attention = torch.empty_like(out) if keep_attention else out.new_empty(0)
    neuron = (None,) * 5
    kept = attention if keep_attention else None
    call("attend", *_kinds(inputs), 0, *out.shape, *inputs, *neuron, 0.0, out, kept, None)
    return out, attention


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
    """[B, T, P, C] three times → (spikes, operand, A or an empty tensor)."""
    inputs = _inputs(potential, spikes, features, scale, shift, query, key, value, gain)
    neuron = [dense(p, torch.float32) for p in (decay, rotation, drive, threshold, coefficient)]
    operand = torch.empty_like(inputs[2])
    fired = torch.empty_like(operand, dtype=operand.dtype if relaxed else torch.uint8)
    attention = torch.empty_like(operand) if keep_attention else operand.new_empty(0)
    outputs = (operand, attention if keep_attention else None, fired)
    call("attend", *_kinds(inputs), relaxed, *operand.shape, *inputs, *neuron, float(sharpness), *outputs)
    return fired, operand, attention


def _inputs(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gain: Tensor,
) -> list[Tensor]:
    """The attention's inputs as the operators read them: contiguous, the weights in the activations' precision."""
    dtype = potential.dtype
    wide = [potential.contiguous(), _spikes(spikes, dtype), features.to(dtype).contiguous()]
    norm = [dense(p, torch.float32) for p in affine(scale, shift)]
    weights = [w.to(dtype).contiguous() for w in (query, key, value)]
    return [*wide, *norm, *weights, gain.float().contiguous()]  # type: ignore[list-item]


def _spikes(spikes: Tensor, dtype: torch.dtype) -> Tensor:
    return (spikes if spikes.dtype == torch.uint8 else spikes.to(dtype)).contiguous()


def _kinds(inputs: list[Tensor]) -> tuple[int, int]:
    """Whether the activations are bfloat16 and whether the spikes are bytes."""
    return is_brain(inputs[0]), int(inputs[1].dtype == torch.uint8)
