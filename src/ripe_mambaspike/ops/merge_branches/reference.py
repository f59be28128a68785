"""The branches of a convolution as one kernel in plain PyTorch."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.merge_branches import MergeBranchesInputs
from ripe_mambaspike.ops.norm import EPSILON


def merge_branches(i: MergeBranchesInputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kernels, dtype = i.kernels, i.kernels.dtype
    mean, second = i.mean.to(dtype), i.second.to(dtype)
    covariance = torch.addr(second, mean, mean, alpha=-1)
    means = kernels @ mean
    variances = ((kernels @ covariance) * kernels).sum(-1).clamp(min=0)
    scale = i.weight * torch.rsqrt(variances + EPSILON)
    merged = (scale[..., None] * kernels).sum(0)
    return merged.to(i.dtype), (i.shift - means * scale).sum(0), means, variances
