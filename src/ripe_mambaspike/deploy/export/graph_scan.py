"""The selective scan for exported graphs: plain functions of tensors, with as many nodes whatever the length.

The same idea as `ops.scan`: all chunks of K positions advance together, what they hand to each other is combined by
doubling. Here K is fixed, the number of chunks M may be a symbol, and where it is one the doublings are as many as the
longest sequence needs (those beyond log₂ M change nothing). Every exponent is at most zero and no quotient is formed:
nothing can overflow.

Glossary: L tokens, D channels, N states a channel; inside, tensors are [K, M, …, D, N] or parts of it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.deploy.export.graph_ops import packed

CHUNK = 32  # K
DOUBLINGS = 13  # where M is a symbol
MAX_TOKENS = CHUNK * 2**DOUBLINGS  # tokens that a graph of any length can take: 262,144


def scan(x: Tensor, delta: Tensor, decay: Tensor, input_weight: Tensor, output_weight: Tensor) -> Tensor:
    """`h_l = exp(Δ_l A) h_{l−1} + Δ_l B_l x_l`, `y_l = C_l h_l` from h = 0.

    x, delta [S, B, L, D] (delta ≥ 0); decay A [S, 1, D, N] (negative); input_weight B and output_weight C
    [S, B, L, N]; S sequences with an A each go together. Returns y [S, B, L, D].
    """
    length = x.shape[2]
    x, delta, into, out_of = (_cut(part) for part in (x, delta, input_weight, output_weight))
    inputs = (delta * x).unsqueeze(-1) * into.unsqueeze(-2)
    shape = inputs.shape
    drives = inputs.flatten(1)  # two dimensions: what runs over the positions is cheap to trace
    decays = torch.exp(delta.unsqueeze(-1) * decay).flatten(1)
    first, *others = drives.split(1)
    local = [first]
    for drive, kept in zip(others, decays.split(1)[1:], strict=True):
        local.append(torch.addcmul(drive, kept, local[-1]))
    reach = torch.exp(delta.cumsum(0).unsqueeze(-1) * decay)  # how much of a chunk's start is left at each position
    starts = _hand_over(local[-1].reshape(shape[1], -1), reach[-1].flatten(1)).reshape(shape[1:])
    states = torch.cat(local).reshape(shape) + reach * starts
    return _join((states @ out_of.unsqueeze(-1)).squeeze(-1), length)


def _chunks(length: int) -> int:
    """M; an expression where the length is a symbol."""
    return (length + CHUNK - 1) // CHUNK


def _cut(x: Tensor) -> Tensor:
    """[S, B, L, F] → [K, M, S, B, F]; positions past the end are zero, which leaves every state as it is."""
    sequences, batch, length, features = x.shape
    count = _chunks(length)
    padded = F.pad(x, (0, 0, 0, count * CHUNK - length))
    return packed(padded.reshape(sequences, batch, count, CHUNK, features).permute(3, 2, 0, 1, 4))


def _join(y: Tensor, length: int) -> Tensor:
    """The inverse of `_cut`."""
    return y.permute(2, 3, 1, 0, 4).flatten(2, 3)[:, :, :length]


def _hand_over(leaves: Tensor, total: Tensor) -> Tensor:
    """What every chunk starts from [M, F], given what each leaves from zero and how much of its start survives it.

    A row of zeros comes first: whatever reaches back beyond the first chunk reads it.
    """
    count = leaves.shape[0]
    zero = torch.zeros_like(leaves[:1])
    if isinstance(count, int) and count == 1:
        return zero
    leaves, total = torch.cat((zero, leaves[:-1])), torch.cat((zero, total[:-1]))
    doublings = (count - 1).bit_length() if isinstance(count, int) else DOUBLINGS
    steps = torch.tensor([2**doubling for doubling in range(doublings)], device=leaves.device)
    rows = (torch.arange(count, device=leaves.device) - steps.unsqueeze(1)).clamp(min=0)
    for doubling, before in enumerate(rows.unbind()):
        leaves = torch.addcmul(leaves, total, leaves.index_select(0, before))
        if doubling < doublings - 1:
            total = total * total.index_select(0, before)
    return leaves
