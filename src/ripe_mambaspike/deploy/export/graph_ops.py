"""The network's operators once more, in the few plain operations that exporters and other runtimes know.

No buffer is written in place, nothing is unrolled over a size that may be a symbol, and no branch is taken on one.
Each rounds as its counterpart in `ops/` and `nn/` does; constants are handed in ready.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.reference import EPSILON
from ripe_mambaspike.ops.neurons import CSILIF_RESET


class Fired(NamedTuple):
    fired: Tensor  # truth values
    level: Tensor  # u or Re m before the reset
    state: tuple[Tensor, ...]


def leaky_step(drive: Tensor, state: tuple[Tensor, ...], decay: Tensor, threshold: Tensor) -> Fired:
    """LIF and SiLIF: `u ← decay·u + drive`, fire at the threshold, subtract it. The state is (u,)."""
    level = torch.addcmul(drive, decay, state[0])
    fired = level >= threshold
    return Fired(fired, level, (torch.where(fired, level - threshold, level),))


def resonating_step(
    drive: Tensor, state: tuple[Tensor, ...], pole_real: Tensor, pole_imag: Tensor, threshold: Tensor
) -> Fired:
    """CSiLIF: `m ← αm + drive`, fire where Re m reaches the threshold, subtract a half. The state is (Re m, Im m).

    The potential is 2 Re m, so the threshold handed in is half the neuron's.
    """
    real, imag = state
    level = torch.addcmul(torch.addcmul(drive, pole_real, real), pole_imag, imag, value=-1)
    fired = level >= threshold
    return Fired(
        fired,
        level,
        (torch.where(fired, level - CSILIF_RESET, level), torch.addcmul(pole_real * imag, pole_imag, real)),
    )


def filtered(x: Tensor, before: Tensor, coefficient: Tensor) -> Tensor:
    """The temporal filter `(1 + λ) x_t − λ x_{t−1}`: x and the steps before [B, T, C, H, W], coefficient [C]."""
    weight = coefficient[:, None, None]
    return x * (1 + weight) - before * weight


def packed(x: Tensor) -> Tensor:
    """x laid out in the order of its dimensions: a copy, made without asking whether symbols are 1."""
    return x.clone(memory_format=torch.contiguous_format)


def step_before(x: Tensor) -> Tensor:
    """x [B, T, …] one step later, zeros first."""
    return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)


def project(x: Tensor, factors: tuple[Tensor, ...]) -> Tensor:
    """x [B', C, N] through each factor in turn: dense [out, in], or grouped [groups, out, in]."""
    for factor in factors:
        if factor.ndim == 2:
            x = torch.bmm(factor.expand(x.shape[0], -1, -1), x)
        else:
            x = (factor @ x.unflatten(1, (factor.shape[0], -1))).flatten(1, 2)
    return x


def positive_feature(z: Tensor) -> Tensor:
    """φ(z) = exp(min(z, 0)) + max(z, 0)."""
    return torch.exp(z.clamp(max=0)) + torch.relu(z)


def convex_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """DS-MPA's quotient, held inside the hull of the values and zero: [B', C, N] three times → [B', C, N]."""
    query, key = positive_feature(query), positive_feature(key)
    mixed = torch.bmm(key, value.transpose(1, 2))
    scale = (query * key.sum(-1, keepdim=True)).sum(-2, keepdim=True) + EPSILON
    low, high = value.amin(-1, keepdim=True).clamp(max=0), value.amax(-1, keepdim=True).clamp(min=0)
    attention = torch.bmm(mixed.transpose(1, 2), query) / scale
    return torch.minimum(torch.maximum(attention, low), high)


def sigmoid_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """`σ(QKᵀ)V` in one piece: [B', C, N] three times. N×N is held whole, which the reference avoids."""
    return torch.bmm(value, torch.sigmoid(torch.bmm(key.transpose(1, 2), query)))


def pool_to(x: Tensor, height: int, width: int) -> Tensor:
    """Means over the cells of a coarser grid, as adaptive pooling divides it: [B', C, H, W] → [B', C, height, width].

    Two products with matrices of zeros and ones: sums of spikes are whole numbers, so they are exact.
    """
    images, channels, down, across = x.shape
    rows, tall = _cells(down, height, x)
    columns, wide = _cells(across, width, x)
    narrow = (x.flatten(0, 2) @ columns.transpose(0, 1)).reshape(images * channels, down, width)
    low = packed(narrow.transpose(1, 2)).flatten(0, 1) @ rows.transpose(0, 1)
    pooled = low.reshape(images, channels, width, height).transpose(2, 3)
    return packed(pooled) / tall.unsqueeze(1) / wide


def _cells(size: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Which of `size` places belong to each of `count` cells [count, size], and how many [count]."""
    cell = torch.arange(count, device=like.device)
    start = torch.div(cell * size, count, rounding_mode="trunc")
    stop = torch.div((cell + 1) * size + (count - 1), count, rounding_mode="trunc")
    place = torch.arange(size, device=like.device)
    inside = (place >= start.unsqueeze(1)) & (place < stop.unsqueeze(1))
    return inside.to(like.dtype), (stop - start).to(like.dtype)


def pool_tokens(tokens: Tensor, ratio: int) -> Tensor:
    """Mean of `ratio` adjacent tokens inside a step, or of those left over: [B, T, k, d] → [B, T, ⌈k/ratio⌉, d]."""
    if ratio == 1:
        return tokens
    batch, steps, count, width = tokens.shape
    cells = (count + ratio - 1) // ratio
    padded = F.pad(tokens, (0, 0, 0, cells * ratio - count))
    first = torch.arange(cells, device=tokens.device) * ratio
    members = (count - first).clamp(max=ratio).to(tokens.dtype)
    return padded.reshape(batch, steps, cells, ratio, width).sum(3) / members.unsqueeze(1)


def salient_tokens(score: Tensor, keep: int) -> Tensor:
    """Positions of the `keep` highest scores in raster order; of equal ones the first: [B, N] → [B, keep]."""
    places = torch.arange(score.shape[1], device=score.device)
    mine, other = score.unsqueeze(2), score.unsqueeze(1)
    ahead = (other > mine) | ((other == mine) & (places < places.unsqueeze(1)))
    rank = ahead.to(torch.int64).sum(2)
    kept = torch.where(rank < keep, places, score.shape[1])
    return torch.topk(kept, keep, dim=1, largest=False, sorted=True).values
