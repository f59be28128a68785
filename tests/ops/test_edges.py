"""Whole numbers, and gradients of gradients."""

import pytest
import torch

from ripe_mambaspike.ops import convex_attention, selective_scan, tdm


def test_tdm_of_whole_numbers():
    out, _ = tdm(torch.ones(1, 3, 1, dtype=torch.int64), torch.tensor([0.5]))
    assert out.flatten().tolist() == [1.5, 1.0, 1.0]


def scan(x):
    return selective_scan(x, x.sigmoid(), -torch.ones(2, 3, dtype=x.dtype), *2 * (x.new_ones(1, 5, 3),))[0]


def attend(x):
    return convex_attention(x[None], x[None], x[None])


@pytest.mark.parametrize("operator", [scan, attend])
def test_second_derivatives_are_refused_in_words(operator):
    x = torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(operator(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
