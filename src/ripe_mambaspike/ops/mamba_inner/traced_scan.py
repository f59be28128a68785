"""The selective scan for exported graphs: plain tensor functions, whose number of nodes does not depend on the length.

The same idea as `scan.py`: all chunks of K positions advance together, their final states are combined, and the
positions are swept once more from the right initial states. K is at most `CHUNK`, and the number of chunks M may be a
symbol; if it is one, they are combined by as many doublings as the longest sequence needs (those beyond log₂ M change
nothing). Every exponent is at most zero and no quotient is formed: nothing can overflow.

Glossary: L tokens, D channels, N states a channel; inside, tensors are [K, M, …, N, D] or parts of it, where … are the
batch and whatever is before it. Channels come last: runtimes compute long rows quickly.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.graph_nodes import graph_node, keeps_node
from ripe_mambaspike.ops.shapes import packed

CHUNK = 32  # the largest K
MAX_IN_TURN = 16  # chunks that are combined one after the other
DOUBLINGS = 13  # if M is a symbol
MAX_TOKENS = CHUNK * 2**DOUBLINGS  # of a graph with a symbolic length: 262,144


def traced_scan(
    x: Tensor, delta: Tensor, decay: Tensor, input_weight: Tensor, output_weight: Tensor, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`h_l = exp(Δ_l A) h_{l−1} + Δ_l B_l x_l`, `y_l = C_l h_l`.

    x, delta [.., L, D] (delta ≥ 0); decay A [D, N] (negative), or one for each sequence [.., D, N]; input_weight B and
    output_weight C [.., L, N]; state [.., D, N]. Returns (y [.., L, D], final state).
    """
    if keeps_node("scan"):
        y, final = scan_node(x, delta, decay, input_weight, output_weight, initial_state)
        return y, final
    length, channels = x.shape[-2:]
    x, delta, into, out_of = (split_chunks(part) for part in (x, delta, input_weight, output_weight))
    inputs = (delta * x).unsqueeze(-2) * into.unsqueeze(-1)
    kept = torch.exp(delta.unsqueeze(-2) * decay.transpose(-1, -2))
    total = torch.exp(delta.sum(0).unsqueeze(-2) * decay.transpose(-1, -2))
    shape, begin = inputs.shape, None
    if initial_state is not None:
        begin = initial_state.to(inputs.dtype).transpose(-1, -2).unsqueeze(0)
    if not isinstance(length, int):  # with symbols, two dimensions make the loops over positions cheap to trace
        inputs, kept, total = (part.flatten(1) for part in (inputs, kept, total))
        begin = None if begin is None else begin.flatten(1)
    drives, decays = inputs.split(1), kept.split(1)
    if not (isinstance(shape[1], int) and shape[1] == 1):
        leaves = advance(drives, decays, None)[-1].reshape(total.shape)
        begin = combine_chunks(leaves, total, torch.zeros_like(leaves[:1]) if begin is None else begin)
        begin = begin.reshape(drives[0].shape)
    elif begin is not None:
        begin = begin.unsqueeze(0)
    states = torch.cat(advance(drives, decays, begin)).reshape(shape)
    y = torch.bmm(out_of.flatten(0, -2).unsqueeze(1), states.flatten(0, -3)).reshape(*shape[:-2], channels)
    y = y.permute(*range(2, y.ndim - 1), 1, 0, -1).flatten(-3, -2)
    return y[..., :length, :], states[-1, -1].transpose(-1, -2)


def advance(drives: Sequence[Tensor], decays: Sequence[Tensor], begin: Tensor | None) -> list[Tensor]:
    """The states of every position, all chunks together, from `begin` (zeros if it is None)."""
    states = [drives[0] if begin is None else torch.addcmul(drives[0], decays[0], begin)]
    for drive, decay in zip(drives[1:], decays[1:], strict=True):
        states.append(torch.addcmul(drive, decay, states[-1]))
    return states


@graph_node(
    "scan", lambda x, delta, decay, b, c, state: (torch.empty_like(x), x.new_empty(*x.shape[:-2], *decay.shape[-2:]))
)
def scan_node(
    x: Tensor, delta: Tensor, decay: Tensor, input_weight: Tensor, output_weight: Tensor, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    y, final = traced_scan(x, delta, decay, input_weight, output_weight, initial_state)
    return y.clone(), final.clone()


def split_chunks(x: Tensor) -> Tensor:
    """[.., L, F] → [K, M, .., F]; positions past the end are zero, which leaves every state as it is."""
    *others, length, features = x.shape
    count = (length + CHUNK - 1) // CHUNK  # an expression where the length is a symbol
    chunk = -(-length // count) if isinstance(length, int) else CHUNK  # chunks of equal length need less padding
    padded = F.pad(x, (0, 0, 0, count * chunk - length)).reshape(*others, count, chunk, features)
    return packed(padded.permute(-2, -3, *range(len(others)), -1))


def combine_chunks(leaves: Tensor, total: Tensor, begin: Tensor) -> Tensor:
    """Every chunk's initial state [M, …, N, D], given its final state from zero and the decay over the whole chunk.

    Where many chunks are combined by doubling, the row of the overall initial state comes first with decay zero, so
    that nothing before it contributes.
    """
    count = leaves.shape[0]
    if isinstance(count, int) and count <= MAX_IN_TURN:
        return torch.cat([begin, *advance(leaves[:-1].split(1), total[:-1].split(1), begin)])
    leaves, total = torch.cat((begin, leaves[:-1])), torch.cat((torch.zeros_like(begin), total[:-1]))
    doublings = (count - 1).bit_length() if isinstance(count, int) else DOUBLINGS
    steps = torch.tensor([2**doubling for doubling in range(doublings)], device=leaves.device)
    rows = (torch.arange(count, device=leaves.device) - steps.unsqueeze(1)).clamp(min=0)
    for doubling, before in enumerate(rows.unbind()):
        leaves = torch.addcmul(leaves, total, leaves.index_select(0, before))
        if doubling < doublings - 1:
            total = total * total.index_select(0, before)
    return leaves
