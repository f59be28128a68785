"""The attention's gradient over more channels than one program holds, a slice of the batch at a time."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.triton_backward import affine_gradients
from ripe_mambaspike.ops.membrane_attention.triton_plan import AttentionInputs, plan_rows, slices
from ripe_mambaspike.ops.membrane_attention.triton_rows import feature_gradient, modulate_rows_gradient
from ripe_mambaspike.ops.membrane_attention.triton_wide import feature_of, gather_wide


def backward_wide(given: AttentionInputs, grad_out: Tensor | None, grad_attention: Tensor | None) -> tuple[Tensor, ...]:
    """Gradients of the inputs in their order; those of the spikes in the potential's dtype."""
    potential, _, features, scale, shift, query, key, value, gain, _ = given
    steps, positions, channels = potential.shape[1:]
    affine = scale is not None and shift is not None
    grad_potential, grad_spikes, grad_features = (torch.empty_like(t) for t in (potential, potential, features))
    grad_query, grad_key, grad_value = (gain.new_zeros(channels, channels) for _ in range(3))
    grad_gain = torch.zeros_like(gain)
    affine_parts = []
    for part in slices(potential, buffers=5, matrices=4):
        u = potential[part].flatten(0, 1)
        found = gather_wide(given, part)
        phi, _ = feature_of(u, query)
        numerator = torch.bmm(phi, found.mixed)
        pairs = u.shape[0]
        cut = plan_rows(pairs, u)
        sizes = cut.sizes(channels)
        by_denominator = gain.new_empty(pairs, positions)
        affine_sums = gain.new_empty((pairs, cut.chunks, 2, channels) if affine else 0)
        channel_sums = gain.new_empty(pairs, cut.chunks, 2, channels)
        incoming = (gain if grad is None else grad[part] for grad in (grad_out, grad_attention))
        modulate_rows_gradient[pairs, cut.chunks](
            *(phi, numerator, found.key_sum, found.center, features[part], *given.affine(), gain, *incoming),
            *(grad_features[part], by_denominator, affine_sums, channel_sums, steps, positions),
            AFFINE=affine,
            OUT=grad_out is not None,
            ATTENTION=grad_attention is not None,
            **{**sizes, "num_warps": 8},
        )
        grad_gain += channel_sums[:, :, 0].sum((0, 1))
        if affine:
            affine_parts.append(affine_sums.sum(1).unflatten(0, (-1, steps)))
        by_numerator = numerator

        by_mixed = torch.bmm(phi.transpose(1, 2), by_numerator)
        by_z = torch.bmm(by_numerator, found.mixed.transpose(1, 2))
        feature_gradient[pairs, cut.chunks](by_z, phi, by_denominator, found.key_sum, positions, ROWS=True, **sizes)
        del phi, numerator, by_numerator
        flat, by_u = by_z.view(-1, channels), grad_potential[part].view(-1, channels)
        torch.mm(flat, query, out=by_u)
        grad_query += _summed(flat.t(), u.view(-1, channels))

        grad_value += _by_value(by_mixed, found.gathered, found.key_sum, found.rates)
        by_gathered = (by_mixed.view(-1, channels) @ value).view_as(by_mixed)
        by_gathered[::steps] = 0
        by_spikes = grad_spikes[part].flatten(0, 1)
        torch.bmm(found.key[1:], by_gathered[1:], out=by_spikes[:-1])
        by_spikes[-1:] = 0
        torch.bmm(found.centered[:-1], by_gathered[1:].transpose(1, 2), out=by_z[1:])
        by_z[:1] = 0
        by_key_sum = channel_sums[:, :, 1].sum(1)
        feature_gradient[pairs, cut.chunks](by_z, found.key, by_key_sum, by_key_sum, positions, ROWS=False, **sizes)
        by_u.addmm_(flat, key)
        grad_key += _summed(flat.t(), u.view(-1, channels))
        del found, by_z, flat
    sums = torch.cat(affine_parts).unsqueeze(2) if affine else gain
    weights = (grad.to(weight.dtype) for grad, weight in ((grad_query, query), (grad_key, key), (grad_value, value)))
    return (
        *(grad_potential, grad_spikes, grad_features),
        *affine_gradients(scale, shift, gain, sums),
        *weights,
        grad_gain,
    )


def _by_value(by_mixed: Tensor, gathered: Tensor, key_sum: Tensor, rates: Tensor) -> Tensor:
    """dMᵀ G summed over the steps, G = gathered + k rᵀ."""
    channels = rates.shape[1]
    around_mean = _summed(by_mixed.view(-1, channels).t(), gathered.view(-1, channels))
    by_center = torch.bmm(key_sum.to(by_mixed.dtype)[:, None], by_mixed)[:, 0].float()
    return around_mean.addmm_(by_center.t(), rates)


def _summed(first: Tensor, second: Tensor) -> Tensor:
    """A product over many positions, in float32 whatever the dtype of its factors."""
    if first.dtype == torch.float32:
        return first @ second
    return torch.mm(first, second, out_dtype=torch.float32)
