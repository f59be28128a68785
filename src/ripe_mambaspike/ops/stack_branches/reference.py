"""The branches of a RepConv as 3×3 kernels in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.stack_branches import StackBranchesInputs


def stack_branches(i: StackBranchesInputs) -> Tensor:
    square, point, row, column, first, last = (None if one is None else one.to(i.dtype) for one in i[:6])
    assert square is not None
    kernels = [square]
    if point is not None and row is not None and column is not None and first is not None and last is not None:
        kernels += [F.pad(point, (1, 1, 1, 1)), F.pad(row, (0, 0, 1, 1)), F.pad(column, (1, 1))]
        kernels.append(torch.einsum("omhw,mi->oihw", last, first[:, :, 0, 0]))
    if i.pooled:
        eye = torch.eye(len(square), dtype=i.dtype, device=square.device)[:, :, None, None]
        kernels += [F.pad(eye, (1, 1, 1, 1)), (eye / 9).expand(-1, -1, 3, 3)]
    return torch.stack(kernels).permute(0, 1, 3, 4, 2).flatten(2)
