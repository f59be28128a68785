"""Twins: the same numbers in PyTorch's own modules, and networks with random statistics."""

import pytest
import torch
from torch import nn

from ripe_mambaspike.nn.norm import LOADED_BATCHES, BatchNorm, TimeBatchNorm


@torch.no_grad()
def randomize(module):
    """Random statistics and affine in every batch norm, random temporal filters; returns the module."""
    for part in module.modules():
        if isinstance(part, BatchNorm | TimeBatchNorm):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
            part.num_batches_tracked = LOADED_BATCHES  # as from a file: the first batch weighs 0.1
            part.weight.uniform_(0.5, 1.5)
            part.bias.normal_(0, 0.3)
        if getattr(part, "coefficient", None) is not None:
            part.coefficient.uniform_(-0.4, 0.4)
    return module


@torch.no_grad()
def twin_norm(norm, step=None):
    """An nn.BatchNorm2d with the numbers of a BatchNorm, or of one step of a TimeBatchNorm."""
    channels = norm.weight.shape[-1]
    twin = nn.BatchNorm2d(channels).to(norm.weight.dtype).train(norm.training)
    for name in ("weight", "bias", "running_mean", "running_var"):
        values = getattr(norm, name)
        getattr(twin, name).copy_(values if step is None else values[step])
    return twin


@torch.no_grad()
def twin_repconv(conv):
    """The sum of the branches' list, each a chain of PyTorch modules, in the order of the specification."""
    stride, channels, in_channels = conv.stride, conv.channels, conv.in_channels
    chains = [
        [nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)],
        [nn.Conv2d(in_channels, channels, 1, stride, 0, bias=False)],
        [nn.Conv2d(in_channels, channels, (1, 3), stride, (0, 1), bias=False)],
        [nn.Conv2d(in_channels, channels, (3, 1), stride, (1, 0), bias=False)],
        [nn.Conv2d(in_channels, channels, 1, bias=False), nn.Conv2d(channels, channels, 3, stride, 1, bias=False)],
        [],
        [nn.AvgPool2d(3, 1, 1, count_include_pad=True)],
    ]
    twins = nn.ModuleList()
    for branch, chain in zip(conv.branches, chains, strict=False):
        learned = [layer for layer in chain if isinstance(layer, nn.Conv2d)]
        for layer, ours in zip(learned, branch.convs, strict=True):
            assert layer.weight.shape == ours.weight.shape
            layer.to(ours.weight.dtype).weight.copy_(ours.weight)
        twins.append(nn.Sequential(*chain, twin_norm(branch.norm)))
    return twins


@pytest.fixture(name="randomize")
def randomize_fixture():
    return randomize


@pytest.fixture(name="twin_norm")
def twin_norm_fixture():
    return twin_norm


@pytest.fixture(name="twin_repconv")
def twin_repconv_fixture():
    return twin_repconv


@pytest.fixture
def same():
    """Equal to float64 rounding."""

    def check(actual, expected, tolerance=1e-12):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

    return check
