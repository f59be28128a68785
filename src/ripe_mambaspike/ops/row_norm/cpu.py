"""LayerNorm of rows on a CPU: PyTorch's own is right for it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.row_norm import EPSILON


def row_norm(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    out = F.layer_norm(x.float(), weight.shape, weight, bias, EPSILON).to(dtype)
    return out.clone() if out is x else out


def row_norm_backward(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _, mean, spread = torch.native_layer_norm(x.float(), weight.shape, weight, None, EPSILON)
    grads = torch.ops.aten.native_layer_norm_backward(
        grad.float(), x.float(), weight.shape, mean, spread, weight, torch.zeros_like(weight), (True, True, True)
    )
    return grads[0].to(x.dtype), grads[1], grads[2]
