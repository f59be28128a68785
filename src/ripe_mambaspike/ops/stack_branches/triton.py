# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The branches of a RepConv as 3×3 kernels on a GPU: one launch for all but the chain, which is a matrix product."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.operator import nothing_like
from ripe_mambaspike.ops.stack_branches import StackBranchesInputs
from ripe_mambaspike.ops.triton_launch import next_power_of_2

CHAIN = 4  # its place among the branches


@triton.jit
def _place(branch, entry, y, x):
    """(offset in the branch's weights, whether its kernel covers this tap); `entry` counts pairs of channels."""
    offset = tl.where(branch == 0, entry * 9 + y * 3 + x, entry)
    offset = tl.where(branch == 2, entry * 3 + x, offset)
    offset = tl.where(branch == 3, entry * 3 + y, offset)
    covered = ((branch == 0) | (branch == 3) | (y == 1)) & ((branch == 0) | (branch == 2) | (x == 1))
    return offset, covered


@triton.jit
def stack_kernel(square, point, row, column, out, channels, IN: tl.constexpr, BLOCK: tl.constexpr):
    """One channel of one branch."""
    channel, number = tl.program_id(0), tl.program_id(1)
    branch = tl.where(number >= 4, number + 1, number)  # all but the chain
    element = tl.arange(0, BLOCK)
    known = element < 9 * IN
    tap, source = element // IN, element % IN
    y, x = tap // 3, tap % 3
    offset, covered = _place(branch, channel * IN + source, y, x)
    covered = covered & known
    value = tl.load(square + offset, mask=covered & (branch == 0), other=0.0).to(tl.float64)
    value += tl.load(point + offset, mask=covered & (branch == 1), other=0.0).to(tl.float64)
    value += tl.load(row + offset, mask=covered & (branch == 2), other=0.0).to(tl.float64)
    value += tl.load(column + offset, mask=covered & (branch == 3), other=0.0).to(tl.float64)
    own = source == channel
    one = tl.full((BLOCK,), 1.0, tl.float64)
    value += tl.where((branch == 5) & own & (tap == 4), one, 0.0)
    value += tl.where((branch == 6) & own, one / 9.0, 0.0)
    tl.store(out + (branch * channels + channel).to(tl.int64) * (9 * IN) + element, value, mask=known)


@triton.jit
def unstack_kernel(grads, square, point, row, column, channels, IN: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient of one channel of one branch, into its own weights."""
    channel, branch = tl.program_id(0), tl.program_id(1)
    element = tl.arange(0, BLOCK)
    tap, source = element // IN, element % IN
    offset, covered = _place(branch, channel * IN + source, tap // 3, tap % 3)
    covered = covered & (element < 9 * IN)
    value = tl.load(grads + (branch * channels + channel).to(tl.int64) * (9 * IN) + element, mask=covered, other=0.0)
    tl.store(square + offset, value, mask=covered & (branch == 0))
    tl.store(point + offset, value, mask=covered & (branch == 1))
    tl.store(row + offset, value, mask=covered & (branch == 2))
    tl.store(column + offset, value, mask=covered & (branch == 3))


def stack_branches(i: StackBranchesInputs) -> Tensor:
    square = i.square.contiguous()
    channels, in_channels = square.shape[:2]
    out = square.new_empty((i.branches, channels, 9 * in_channels), dtype=i.dtype)
    others = (square if one is None else one.contiguous() for one in i[1:4])
    grid = (channels, max(1, i.branches - 1))  # all but the chain
    stack_kernel[grid](square, *others, out, channels, IN=in_channels, BLOCK=next_power_of_2(9 * in_channels))
    if i.chain_first is not None and i.chain_last is not None:
        first, last = _chain(i.chain_first, i.chain_last, i.dtype)
        torch.mm(last, first, out=out[CHAIN].view(-1, in_channels))
    return out


def stack_branches_backward(i: StackBranchesInputs, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    given = grads[0].contiguous()
    channels, in_channels = i.square.shape[:2]
    found = [i.square.new_empty(0 if one is None else one.shape) for one in i[:4]]
    targets = [found[0] if one is None else grad for one, grad in zip(i[:4], found, strict=True)]
    grid = (channels, 1 if i.point is None else CHAIN)
    unstack_kernel[grid](given, *targets, channels, IN=in_channels, BLOCK=next_power_of_2(9 * in_channels))
    if i.chain_first is None or i.chain_last is None:
        return *found, nothing_like(i.square), nothing_like(i.square)
    first, last = _chain(i.chain_first, i.chain_last, given.dtype)
    of_chain = given[CHAIN].view(-1, in_channels)
    of_first = torch.mm(last.t(), of_chain).to(i.chain_first.dtype).view(i.chain_first.shape)
    of_last = torch.mm(of_chain, first.t()).view(channels, 3, 3, -1).permute(0, 3, 1, 2)
    return *found, of_first, torch.empty_like(i.chain_last).copy_(of_last)


def _chain(first: Tensor, last: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The chain's weights as matrices: [C, C_in], and [9 C, C] tap by tap."""
    taps = torch.empty(len(last), 3, 3, last.shape[1], dtype=dtype, device=last.device)
    taps.copy_(last.permute(0, 2, 3, 1))
    return first.to(dtype).flatten(1), taps.flatten(0, 2)
