"""A 3×3 convolution of filtered spikes with int8 weights, whose sums are whole numbers.

A filtered spike is (1 + λ) s_t − λ s_{t−1} with s of 0 or 1. If λ is a multiple of 1/128, then so is every input, and
with |λ| < 1/2 it is one of 256: nothing is rounded when it becomes a byte.
"""

import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.graph_nodes import graph_node

FILTER_GRID = 128  # multiples of 1/128
ZERO = 64  # the byte that stands for 0: inputs from −64/128 to 191/128


def is_on_filter_grid(coefficient: Tensor | None) -> bool:
    """Whether spikes filtered by λ [C] are bytes; without a filter they are."""
    if coefficient is None:
        return True
    scaled = coefficient.detach().double() * FILTER_GRID
    return bool((scaled == scaled.round()).all()) and bool((scaled.abs() < ZERO).all())


def _empty_convolved(x: Tensor, values: Tensor, scale: Tensor, bias: Tensor, stride: int) -> Tensor:
    height, width = ((side - 1) // stride + 1 for side in x.shape[2:])
    return x.new_empty(x.shape[0], values.shape[0], height, width)


@graph_node("integer_conv", _empty_convolved)
def integer_conv_node(x: Tensor, values: Tensor, scale: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Filtered spikes x [B, C_in, H, W], int8 values [C, C_in, 3, 3], scale [C, 1, 1, 1] → [B, C, H', W']."""
    return F.conv2d(x, values.to(x.dtype) * scale, bias, stride, 1)
