"""Calls of the convolution's kernels."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.mamba_inner.triton_conv_kernels import conv_gradients_kernel, conv_kernel
from ripe_mambaspike.ops.mamba_inner.triton_scan_plan import Sizes
from ripe_mambaspike.ops.triton_launch import ceil_div, next_power_of_2

TILE_ELEMENTS = 2048
SEGMENT = 256  # tokens whose gradients one program sums


def convolve_tokens(
    inputs: Tensor, conv: Tensor, conv_bias: Tensor | None, sizes: Sizes, before: Tensor | None = None
) -> Tensor:
    """u = silu(convolution of the inner half) [D, B, L, E]; before: the K − 1 inputs before the first [B, K − 1, E]."""
    u = inputs.new_empty(sizes.directions, sizes.batch, sizes.length, sizes.channels)
    _convolve(inputs, conv, conv_bias, u, sizes, before)
    return u


def _convolve(
    inputs: Tensor,
    conv: Tensor,
    conv_bias: Tensor | None,
    u: Tensor,
    sizes: Sizes,
    before: Tensor | None = None,
    *,
    gradient: bool = False,
) -> None:
    """Fill u, or replace u's gradient in it by the convolution's."""
    columns = min(128, next_power_of_2(sizes.channels))
    rows = TILE_ELEMENTS // columns
    blocks = ceil_div(sizes.channels, columns)
    conv_kernel[(ceil_div(sizes.length, rows) * blocks, sizes.sequences)](
        *(inputs, conv, conv if conv_bias is None else conv_bias, u),
        *(sizes.batch, sizes.length, sizes.directions, sizes.channels, blocks),
        GRADIENT=gradient,
        BIASED=conv_bias is not None,
        K=sizes.taps,
        ROWS=rows,
        COLUMNS=columns,
        before_ptr=before,
    )


def convolve_backward(
    inputs: Tensor, conv: Tensor, conv_bias: Tensor | None, grad_u: Tensor, grad_inputs: Tensor, sizes: Sizes
) -> tuple[Tensor, Tensor]:
    """Fill the inner half of grad_inputs; the gradients of conv [D, E, K] and of its bias [D, E], empty if None.

    grad_u is overwritten by the convolution's gradient.
    """
    _convolve(inputs, conv, conv_bias, grad_u, sizes, gradient=True)
    columns = min(64, next_power_of_2(sizes.channels))
    rows = TILE_ELEMENTS // 2 // columns
    blocks = ceil_div(sizes.channels, columns)
    segments = ceil_div(sizes.length, SEGMENT)
    sums = conv.new_empty(sizes.directions, sizes.batch, segments, sizes.taps + 1, sizes.channels)
    conv_gradients_kernel[(segments * blocks, sizes.sequences)](
        *(inputs, conv, grad_u, grad_inputs, sums),
        *(sizes.batch, sizes.length, sizes.directions, sizes.channels, blocks, segments),
        K=sizes.taps,
        SUMS=next_power_of_2(sizes.taps + 1),
        SEGMENT=SEGMENT,
        ROWS=rows,
        COLUMNS=columns,
    )
    total = torch.sum(sums, (1, 2))  # [D, K + 1, E]
    grad_conv = total[:, : sizes.taps].transpose(1, 2).clone(memory_format=torch.contiguous_format)
    return grad_conv, conv.new_empty(0) if conv_bias is None else total[:, sizes.taps].clone()
