"""Attention over more channels than one program holds: matrix products by cuBLAS, a slice of the batch at a time.

Steps are numbered through the slice, [pairs, P, C], so that the spikes before step n are those of n − 1 without a
copy. For the first step of a sample those are another sample's: its mixture is set to zero. With a state the spikes are
given shifted: then those before step n lie at n.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.triton_plan import AttentionInputs, plan_rows, slices
from ripe_mambaspike.ops.membrane_attention.triton_rows import apply_feature, center_spikes, modulate_rows


class Gathered(NamedTuple):
    """The sums of `triton_mix` for every step of a slice."""

    key: Tensor  # φ(K) [pairs, P, C]
    centered: Tensor  # S − r [pairs, P, C], of the spikes of this step
    gathered: Tensor  # φ(K)ᵀ (S − r) of the spikes before [pairs, C, C]
    mixed: Tensor  # M [pairs, C, C]
    key_sum: Tensor  # k [pairs, C] float32
    rates: Tensor  # r of the spikes before [pairs, C] float32
    center: Tensor  # c [pairs, C] float32


def modulate_wide(given: AttentionInputs, keep_attention: bool) -> tuple[Tensor, Tensor]:
    """(modulated features, A or an empty tensor), all [B, T, P, C]."""
    features = given.features
    steps, positions, channels = features.shape[1:]
    out = features.new_empty(features.shape)
    attention = features.new_empty(features.shape if keep_attention else 0)
    modes = {**given.modes(), "KEEP": keep_attention}
    del modes["SHIFTED"]
    for part in slices(given.potential, buffers=3, matrices=2):
        u = given.potential[part].flatten(0, 1)
        found = gather_wide(given, part)
        phi, _ = feature_of(u, given.query, out=found.key)
        numerator = torch.bmm(phi, found.mixed, out=found.centered)
        cut = plan_rows(u.shape[0], u)
        kept = attention[part] if keep_attention else attention
        arguments = (phi, numerator, found.key_sum, found.center, features[part], *given.affine(part), given.gain)
        sizes = cut.sizes(channels)
        modulate_rows[u.shape[0], cut.chunks](*arguments, out[part], kept, steps, positions, **sizes, **modes)
        del phi, numerator, found, arguments
    return out, attention


def gather_wide(given: AttentionInputs, part: slice) -> Gathered:
    """The sums over the positions of each step, for some samples."""
    potential, spikes = (t[part].flatten(0, 1) for t in (given.potential, given.spikes))
    (pairs, positions, channels), steps = potential.shape, given.potential.shape[1]
    phi, key_sum = feature_of(potential, given.key, total=True)
    rates = spikes.sum(1, dtype=torch.float32).div_(positions)
    centered = torch.empty_like(potential)
    cut = plan_rows(pairs, potential)
    center_spikes[pairs, cut.chunks](spikes, rates, centered, positions, **cut.sizes(channels))
    gathered = potential.new_empty(pairs, channels, channels)
    if given.shifted:
        torch.bmm(phi.transpose(1, 2), centered, out=gathered)
        before = rates
    else:
        torch.bmm(phi[1:].transpose(1, 2), centered[:-1], out=gathered[1:])
        gathered[::steps] = 0
        before = rates.roll(1, 0)
        before[::steps] = 0
    mixed = (gathered.view(-1, channels) @ given.value.t()).view_as(gathered)
    return Gathered(phi, centered, gathered, mixed, key_sum, before, before @ given.value.float().t())


def feature_of(x: Tensor, weight: Tensor, total: bool = False, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(φ(x Wᵀ) [pairs, P, C], its sums over positions [pairs, C] if requested)."""
    pairs, positions, channels = x.shape
    phi = torch.empty_like(x) if out is None else out
    torch.mm(x.view(-1, channels), weight.t(), out=phi.view(-1, channels))
    cut = plan_rows(pairs, x)
    sums = x.new_empty((pairs, cut.chunks, channels) if total else 0, dtype=torch.float32)
    apply_feature[pairs, cut.chunks](phi, sums, positions, SUM=total, **cut.sizes(channels))
    return phi, sums.sum(1) if total else sums
