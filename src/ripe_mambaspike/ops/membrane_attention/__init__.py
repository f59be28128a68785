"""DS-MPA over normalized features, and for inference together with the neuron that reads it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.backend import run
from ripe_mambaspike.ops.membrane_attention.reference import ds_mpa
from ripe_mambaspike.ops.norm_fire import Neuron
from ripe_mambaspike.ops.operator import nothing_like, or_none


class AttentionWeights(NamedTuple):
    query: Tensor  # [C, C], out × in, the activations' precision
    key: Tensor
    value: Tensor
    gain: Tensor  # [C], float32


def attend(
    potential: Tensor,
    spikes: Tensor,
    carrier: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weights: AttentionWeights,
    keep_attention: bool = False,
) -> tuple[Tensor, Tensor]:
    """`X + γ A X` with X_t = scale_t·features_t + shift_t and A from the potential and the spikes of the step before.

    potential, spikes, features [B, T, P, C]; scale, shift [T, C]. Returns (modulated, A or an empty tensor). The
    kernels hold A in the hull of the values to rounding, the reference exactly.
    """
    out, attention = torch.ops.ripe.attend(potential, spikes, carrier, features, scale, shift, *weights, keep_attention)
    return out, attention


def attend_reference(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weights: AttentionWeights,
) -> tuple[Tensor, Tensor]:
    """The same in plain PyTorch, spikes as numbers: (modulated, A)."""
    normed = features if scale is None or shift is None else scale[:, None] * features + shift[:, None]
    query, key, value, gain = weights
    potential, spikes, normed = (t.transpose(2, 3) for t in (potential, spikes, normed))
    (out, attention), _ = ds_mpa(potential, spikes, normed, (query,), (key,), (value,), gain)
    return out.transpose(2, 3), attention.transpose(2, 3)


def attend_fire(
    potential: Tensor,
    spikes: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weights: AttentionWeights,
    neuron: Neuron,
    coefficient: Tensor | None,
    *,
    relaxed: bool = False,
    sharpness: float = 2.0,
    keep_attention: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """`attend`, then the neuron, without a gradient: (spikes, operand, A or an empty tensor)."""
    arguments = (potential, spikes, features, scale, shift, *weights, *neuron, coefficient)
    fired, operand, attention = torch.ops.ripe.attend_fire(*arguments, relaxed, sharpness, keep_attention)
    return fired, operand, attention


@torch.library.custom_op("ripe::attend", mutates_args=())
def _attend(
    potential: Tensor,
    spikes: Tensor,
    carrier: Tensor,
    features: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gain: Tensor,
    keep_attention: bool,
) -> tuple[Tensor, Tensor]:
    arguments = (spikes, features, scale, shift, query, key, value, gain, keep_attention)
    return tuple(run("membrane_attention", "attend", potential, *arguments))


@_attend.register_fake
def _(potential: Tensor, spikes: Tensor, carrier: Tensor, features: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(features), torch.empty_like(features) if rest[-1] else nothing_like(features)


@torch.library.custom_op("ripe::attend_backward", mutates_args=())
def _attend_backward(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    arguments = (spikes, features, scale, shift, query, key, value, gain, grad_out, grad_attention)
    return tuple(run("membrane_attention", "attend_backward", potential, *arguments))


@_attend_backward.register_fake
def _(
    potential: Tensor, spikes: Tensor, features: Tensor, scale: Tensor | None, shift: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    affine = (nothing_like(rest[3]) if p is None else torch.empty_like(p) for p in (scale, shift))
    wide = (torch.empty_like(t) for t in (potential, potential, features))
    return *wide, *affine, *(torch.empty_like(w) for w in rest[:4])


def _attend_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    potential, spikes, _, *rest = inputs[:10]
    ctx.save_for_backward(potential, spikes, *rest)


def _attend_gradient(ctx: Any, out: Any, attention: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    potential, spikes, *rest = or_none(saved, torch.ops.ripe.attend_backward(*saved, out, attention))
    return (potential, None, spikes, *rest, None)


_attend.register_autograd(_attend_gradient, setup_context=_attend_context)


@torch.library.custom_op("ripe::attend_fire", mutates_args=())
def _attend_fire(
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
    attention = (spikes, features, scale, shift, query, key, value, gain)
    neuron = (decay, rotation, drive, threshold, coefficient)
    options = (relaxed, sharpness, keep_attention)
    return tuple(run("membrane_attention", "attend_fire", potential, *attention, *neuron, *options))


@_attend_fire.register_fake
def _(potential: Tensor, spikes: Tensor, features: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    relaxed, _, keep = rest[-3:]
    fired = torch.empty_like(features, dtype=features.dtype if relaxed else torch.uint8)
    attention = torch.empty_like(features) if keep else nothing_like(features)
    return fired, torch.empty_like(features), attention
