"""The selective scan for exported graphs: plain tensor functions, whose number of nodes does not depend on the length.

The same idea as `scan.py`: all chunks of K positions advance together, and their final states are combined by doubling.
Here K is fixed and the number of chunks M may be a symbol; if it is one, there are as many doublings as the longest
sequence needs (those beyond log₂ M change nothing). Every exponent is at most zero and no quotient is formed: nothing
can overflow.

Glossary: L tokens, D channels, N states a channel; inside, tensors are [K, M, …, D, N] or parts of it, where … are the
batch and whatever is before it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.graph_nodes import graph_node, keeps_nodes
from ripe_mambaspike.ops.shapes import packed

CHUNK = 32  # K
DOUBLINGS = 13  # if M is a symbol
MAX_TOKENS = CHUNK * 2**DOUBLINGS  # of a graph with a symbolic length: 262,144


def traced_scan(
    x: Tensor, delta: Tensor, decay: Tensor, input_weight: Tensor, output_weight: Tensor, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`h_l = exp(Δ_l A) h_{l−1} + Δ_l B_l x_l`, `y_l = C_l h_l`.

    x, delta [.., L, D] (delta ≥ 0); decay A [D, N] (negative), or one for each sequence [.., D, N]; input_weight B and
    output_weight C [.., L, N]; state [.., D, N]. Returns (y [.., L, D], final state).
    """
    if keeps_nodes():
        y, final = scan_node(x, delta, decay, input_weight, output_weight, initial_state)
        return y, final
    length = x.shape[-2]
    x, delta, into, out_of = (_split_chunks(part) for part in (x, delta, input_weight, output_weight))
    inputs = (delta * x).unsqueeze(-1) * into.unsqueeze(-2)
    shape = inputs.shape
    drives = inputs.flatten(1)  # two dimensions make the loop over positions cheap to trace
    decays = torch.exp(delta.unsqueeze(-1) * decay).flatten(1)
    first, *others = drives.split(1)
    local = [first]
    for drive, kept in zip(others, decays.split(1)[1:], strict=True):
        local.append(torch.addcmul(drive, kept, local[-1]))
    reach = torch.exp(delta.cumsum(0).unsqueeze(-1) * decay)  # share of a chunk's initial state left at each position
    begin = torch.zeros_like(inputs[0, :1]) if initial_state is None else initial_state.to(inputs.dtype).unsqueeze(0)
    leaves = local[-1].reshape(shape[1], -1)
    starts = _combine_chunks(leaves, reach[-1].flatten(1), begin.flatten(1)).reshape(shape[1:])
    states = torch.cat(local).reshape(shape) + reach * starts
    y = (states @ out_of.unsqueeze(-1)).squeeze(-1)
    y = y.permute(*range(2, y.ndim - 1), 1, 0, -1).flatten(-3, -2)
    return y[..., :length, :], states[-1, -1]


@graph_node("scan", lambda x, delta, decay, b, c, state: (torch.empty_like(x), x.new_empty(*x.shape[:-2], *decay.shape[-2:])))
def scan_node(
    x: Tensor, delta: Tensor, decay: Tensor, input_weight: Tensor, output_weight: Tensor, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    y, final = traced_scan(x, delta, decay, input_weight, output_weight, initial_state)
    return y.clone(), final.clone()


def _split_chunks(x: Tensor) -> Tensor:
    """[.., L, F] → [K, M, .., F]; positions past the end are zero, which leaves every state as it is."""
    *others, length, features = x.shape
    count = (length + CHUNK - 1) // CHUNK  # an expression where the length is a symbol
    padded = F.pad(x, (0, 0, 0, count * CHUNK - length)).reshape(*others, count, CHUNK, features)
    return packed(padded.permute(-2, -3, *range(len(others)), -1))


def _combine_chunks(leaves: Tensor, total: Tensor, begin: Tensor) -> Tensor:
    """Every chunk's initial state [M, F], given its final state from zero and the decay over the whole chunk.

    The row of the overall initial state comes first with decay zero, so that nothing before it contributes.
    """
    count = leaves.shape[0]
    if isinstance(count, int) and count == 1:
        return begin
    leaves, total = torch.cat((begin, leaves[:-1])), torch.cat((torch.zeros_like(begin), total[:-1]))
    doublings = (count - 1).bit_length() if isinstance(count, int) else DOUBLINGS
    steps = torch.tensor([2**doubling for doubling in range(doublings)], device=leaves.device)
    rows = (torch.arange(count, device=leaves.device) - steps.unsqueeze(1)).clamp(min=0)
    for doubling, before in enumerate(rows.unbind()):
        leaves = torch.addcmul(leaves, total, leaves.index_select(0, before))
        if doubling < doublings - 1:
            total = total * total.index_select(0, before)
    return leaves
