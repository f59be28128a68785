"""LayerNorm of rows on a CPU, by PyTorch's own operator."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.row_norm import EPSILON, RowNormInputs


def row_norm(i: RowNormInputs) -> Tensor:
    return F.layer_norm(i.x.float(), i.weight.shape, i.weight, i.bias, EPSILON).to(i.dtype)


def row_norm_backward(i: RowNormInputs, grads: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = i.x.float(), i.weight
    _, mean, spread = torch.native_layer_norm(x, weight.shape, weight, None, EPSILON)
    found = torch.ops.aten.native_layer_norm_backward(
        grads[0].float().contiguous(), x, weight.shape, mean, spread, weight, i.bias, (True, True, True)
    )
    return found[0].to(i.x.dtype), found[1], found[2]
