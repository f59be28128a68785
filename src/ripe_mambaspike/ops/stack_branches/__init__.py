"""The branches of a RepConv as 3×3 kernels in one tensor, tap by tap, as `merge_branches` reads them."""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.operator import Operator


class StackBranchesInputs(NamedTuple):
    """The weights of the branches; all but the first are None where there is only that one."""

    square: Tensor  # [C, C_in, 3, 3]
    point: Tensor | None  # [C, C_in, 1, 1]
    row: Tensor | None  # [C, C_in, 1, 3]
    column: Tensor | None  # [C, C_in, 3, 1]
    chain_first: Tensor | None  # [C, C_in, 1, 1]
    chain_last: Tensor | None  # [C, C, 3, 3]
    pooled: bool  # also the identity and the 3×3 mean
    dtype: torch.dtype  # of the result

    @property
    def branches(self) -> int:
        return 1 if self.point is None else 7 if self.pooled else 5


def stack_branches(i: StackBranchesInputs) -> Tensor:
    """Every branch as a kernel [branches, C, 9 C_in]: 3×3, 1×1, 1×3, 3×1, 1×1→3×3, identity, mean."""
    out: Tensor = STACK_BRANCHES(i)
    return out


def _empty(i: StackBranchesInputs) -> Tensor:
    channels, in_channels = i.square.shape[:2]
    return i.square.new_empty((i.branches, channels, 9 * in_channels), dtype=i.dtype)


STACK_BRANCHES = Operator(
    "stack_branches",
    StackBranchesInputs,
    ("kernels",),
    _empty,
    gradients=("square", "point", "row", "column", "chain_first", "chain_last"),
)
