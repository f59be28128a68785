"""The branches of a convolution, with batch norms, as one kernel: their statistics follow from the moments of patches.

A branch that equals the kernel k has the batch mean k·m and the variance kᵀ(S − m mᵀ)k, where m and S are the first and
second moment of the input's patches (`patch_moments`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.operator import Operator


class MergeBranchesInputs(NamedTuple):
    kernels: Tensor  # [branches, C, K], K = 9 C_in; float64 in the network
    weight: Tensor  # of the norms [branches, C], in the same precision
    shift: Tensor  # of the norms [branches, C]
    mean: Tensor  # of the patches [K]
    second: Tensor  # mean of patch·patchᵀ [K, K]
    dtype: torch.dtype  # of the merged kernel


class MergedBranches(NamedTuple):
    kernel: Tensor  # [C, K]
    bias: Tensor  # [C], like `means` and `variances` in the precision of the branches' kernels
    means: Tensor  # of the branches [branches, C]
    variances: Tensor  # [branches, C]


def merge_branches(
    kernels: Tensor, weight: Tensor, shift: Tensor, mean: Tensor, second: Tensor, dtype: torch.dtype
) -> MergedBranches:
    """The kernel and bias that equal the sum of all branches with these statistics, and the branches' own ones."""
    return MergedBranches(*MERGE_BRANCHES(MergeBranchesInputs(kernels, weight, shift, mean, second, dtype)))


def _empty(i: MergeBranchesInputs) -> tuple[Tensor, ...]:
    branches, channels, size = i.kernels.shape
    kernel = i.kernels.new_empty((channels, size), dtype=i.dtype)
    return kernel, i.kernels.new_empty(channels), *(i.kernels.new_empty((branches, channels)) for _ in range(2))


MERGE_BRANCHES = Operator(
    "merge_branches",
    MergeBranchesInputs,
    MergedBranches._fields,
    _empty,
    gradients=("kernels", "weight", "shift", "mean", "second"),
)
