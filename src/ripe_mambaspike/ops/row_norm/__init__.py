"""LayerNorm of short rows. PyTorch's own gives each row a block of threads, which tokens of 32 numbers leave idle."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.backend import run

EPSILON = 1e-5


def row_norm(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """LayerNorm over the last dimension: x [..., d], weight and bias [d] float32 → [..., d] in `dtype`."""
    out: Tensor = torch.ops.ripe.row_norm(x.contiguous(), weight, bias, dtype)
    return out


def row_norm_reference(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return F.layer_norm(x.to(weight.dtype), weight.shape, weight, bias, EPSILON).to(dtype)


@torch.library.custom_op("ripe::row_norm", mutates_args=())
def _row_norm(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    out: Tensor = run("row_norm", "row_norm", x, weight, bias, dtype)
    return out


@_row_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(x, dtype=dtype)


@torch.library.custom_op("ripe::row_norm_backward", mutates_args=())
def _row_norm_backward(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(run("row_norm", "row_norm_backward", x, weight, grad))


@_row_norm_backward.register_fake
def _(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)


def _context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return (*torch.ops.ripe.row_norm_backward(*ctx.saved_tensors, grad.contiguous()), None)


_row_norm.register_autograd(_gradient, setup_context=_context)
