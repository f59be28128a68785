"""The attention's gradient if one program holds all channels: launches of the two passes."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.triton_gradient import key_side, query_side
from ripe_mambaspike.ops.membrane_attention.triton_mix import mixture
from ripe_mambaspike.ops.membrane_attention.triton_plan import (
    FLOAT32_PRODUCTS,
    MAX_PARTIALS,
    AttentionInputs,
    plan_tiles,
)


def backward(given: AttentionInputs, grad_out: Tensor | None, grad_attention: Tensor | None) -> tuple[Tensor, ...]:
    """Gradients of the inputs in their order; those of the spikes in the potential's precision."""
    potential, spikes, features, scale, shift, query, key, value, gain, _ = given
    batch, steps, positions, channels = potential.shape
    pairs, later = given.pairs, given.mixtures
    cut = plan_tiles(pairs, potential, most=MAX_PARTIALS)
    chunks = cut.chunks
    mixed, sums, gathered = mixture(given, keep=True)
    grad_potential, grad_spikes, grad_features = (torch.empty_like(t) for t in (potential, potential, features))
    affine = scale is not None and shift is not None
    affine_sums = sums.new_empty((batch, steps, chunks, 2, channels) if affine else 0)
    channel_sums = sums.new_empty(later, chunks, 2, channels)
    grad_mixed, grad_weight = (sums.new_empty(later, chunks, channels, channels) for _ in range(2))
    sizes = {**cut.sizes(channels), "num_stages": cut.stages, "PRECISION": FLOAT32_PRODUCTS}
    query_side[pairs, chunks](
        *(potential, features, *given.affine(), query, gain, mixed, sums),
        *(gain if grad is None else grad for grad in (grad_out, grad_attention)),
        *(grad_potential, grad_features, affine_sums, channel_sums, grad_mixed, grad_weight, steps, positions),
        AFFINE=affine,
        OUT=grad_out is not None,
        ATTENTION=grad_attention is not None,
        **sizes,
    )
    grad_query = grad_weight.sum((0, 1)).to(query.dtype)
    del mixed

    grad_mixed = grad_mixed[:, 0] if chunks == 1 else grad_mixed.sum(1)
    grad_gain, by_key_sum = channel_sums[:, :, 0].sum((0, 1)), channel_sums[:, :, 1].sum(1)
    grad_value = (grad_mixed.reshape(-1, channels).t() @ gathered.view(-1, channels)).to(value.dtype)
    del gathered
    grad_gathered = (grad_mixed @ value.float()).to(potential.dtype)
    del grad_mixed
    arguments = (potential, spikes, key, sums, grad_gathered, by_key_sum, grad_potential, grad_spikes, grad_weight)
    key_side[pairs, chunks](*arguments, steps, positions, **sizes)
    grad_key = grad_weight.sum((0, 1)).to(key.dtype)
    grads = (grad_potential, grad_spikes, grad_features)
    return *grads, *affine_gradients(scale, shift, gain, affine_sums), grad_query, grad_key, grad_value, grad_gain


def affine_gradients(scale: Tensor | None, shift: Tensor | None, gain: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of scale and shift from sums [B, T, chunks, 2, C]; empty if there is no such parameter."""
    if scale is not None and shift is not None:
        return sums[..., 0, :].sum((0, 2)), sums[..., 1, :].sum((0, 2))
    first, second = (gain.new_empty(0) if given is None else torch.zeros_like(given) for given in (scale, shift))
    return first, second
