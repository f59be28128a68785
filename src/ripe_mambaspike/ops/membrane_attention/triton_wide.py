"""Attention over more channels than a program holds: matrix products by cuBLAS, a slice of the batch at a time.

Steps are numbered through the slice, [pairs, P, C], so that the spikes before step n are those of n − 1 without a
copy. For the first step of a sample those are another sample's: its mixture is set to zero.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.triton_plan import plan_rows, slices
from ripe_mambaspike.ops.membrane_attention.triton_rows import apply_feature, center_spikes, modulate_rows


class Gathered(NamedTuple):
    """Of every step of a slice, as attention_mix has it of the later ones."""

    key: Tensor  # φ(K) [pairs, P, C]
    centered: Tensor  # S − r [pairs, P, C], of this step's spikes
    gathered: Tensor  # φ(K)ᵀ (S − r) of the spikes before [pairs, C, C]
    mixed: Tensor  # M [pairs, C, C]
    key_sum: Tensor  # k [pairs, C] float32
    rates: Tensor  # r of the spikes before [pairs, C] float32
    center: Tensor  # c [pairs, C] float32


def modulate_wide(
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
    """(modulated features, A or an empty tensor), all [B, T, P, C]."""
    steps, positions, channels = potential.shape[1:]
    out = features.new_empty(features.shape)
    attention = features.new_empty(features.shape if keep_attention else 0)
    affine = scale is not None and shift is not None
    for part in slices(potential, buffers=3, matrices=2):
        u = potential[part].flatten(0, 1)
        found = gather_wide(u, spikes[part].flatten(0, 1), key, value, steps)
        phi, _ = feature_of(u, query, out=found.key)
        numerator = torch.bmm(phi, found.mixed, out=found.centered)
        cut = plan_rows(u.shape[0], u)
        modulate_rows[u.shape[0], cut.chunks](
            phi,
            numerator,
            found.key_sum,
            found.center,
            features[part],
            scale if affine else gain,
            shift if affine else gain,
            gain,
            out[part],
            attention[part] if keep_attention else attention,
            steps,
            positions,
            C=channels,
            WIDTH=cut.width,
            BLOCK=cut.block,
            SPAN=cut.span,
            AFFINE=affine,
            KEEP=keep_attention,
        )
        del phi, numerator, found
    return out, attention


def gather_wide(potential: Tensor, spikes: Tensor, key: Tensor, value: Tensor, steps: int) -> Gathered:
    """What the positions of a step give together, for potential and spikes [pairs, P, C]."""
    pairs, positions, channels = potential.shape
    phi, key_sum = feature_of(potential, key, total=True)
    rates = spikes.sum(1, dtype=torch.float32).div_(positions)
    centered = torch.empty_like(potential)
    cut = plan_rows(pairs, potential)
    sizes = {"C": channels, "WIDTH": cut.width, "BLOCK": cut.block, "SPAN": cut.span}
    center_spikes[pairs, cut.chunks](spikes, rates, centered, positions, **sizes)
    gathered = potential.new_empty(pairs, channels, channels)
    torch.bmm(phi[1:].transpose(1, 2), centered[:-1], out=gathered[1:])
    gathered[::steps] = 0
    before = rates.roll(1, 0)
    before[::steps] = 0
    mixed = (gathered.view(-1, channels) @ value.t()).view_as(gathered)
    return Gathered(phi, centered, gathered, mixed, key_sum, before, before @ value.float().t())


def feature_of(x: Tensor, weight: Tensor, total: bool = False, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(φ(x Wᵀ) [pairs, P, C], its sums over positions [pairs, C] if wanted)."""
    pairs, positions, channels = x.shape
    phi = torch.empty_like(x) if out is None else out
    torch.mm(x.view(-1, channels), weight.t(), out=phi.view(-1, channels))
    cut = plan_rows(pairs, x)
    sums = x.new_empty((pairs, cut.chunks, channels) if total else 0, dtype=torch.float32)
    sizes = {"C": channels, "WIDTH": cut.width, "BLOCK": cut.block, "SPAN": cut.span}
    apply_feature[pairs, cut.chunks](phi, sums, positions, SUM=total, **sizes)
    return phi, sums.sum(1) if total else sums
