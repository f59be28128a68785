"""Operations of any network, counted while it runs, against counting by hand."""

import pytest
import torch
from torch import nn

from ripe_mambaspike.account.synaptic import _activity
from ripe_mambaspike.models.config import MambaSpikeConfig
from ripe_mambaspike.models.counted_flops import count_by_running
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.peers.layers import SpikeMatmul
from ripe_mambaspike.models.registry import meta_model


def reads_by_hand(conv, spikes):
    """Multiply-adds and additions of a 2-D convolution, tap by tap."""
    (n, channels, height, width), (kernel, _), (stride, _), (padding, _) = (
        spikes.shape, conv.kernel_size, conv.stride, conv.padding,
    )  # fmt: skip
    macs = additions = 0
    outputs = conv.out_channels // conv.groups
    rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    for y in range(rows):
        for x in range(columns):
            for dy in range(kernel):
                for dx in range(kernel):
                    row, column = y * stride + dy - padding, x * stride + dx - padding
                    if 0 <= row < height and 0 <= column < width:
                        macs += n * channels * outputs
                        additions += int(spikes[:, :, row, column].sum()) * outputs
    return macs, additions


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 1, 1), (2, 1, 1), (2, 0, 1), (1, 1, 4)])
def test_convolutions_are_exact_at_the_borders(stride, padding, groups):
    conv = nn.Conv2d(4, 8, 3, stride, padding, groups=groups)
    spikes = (torch.rand(3, 4, 7, 6) < 0.3).float()
    found = _activity("conv", conv, (spikes,), 1)
    assert (found.macs, found.accumulates) == reads_by_hand(conv, spikes)
    assert found.rate == pytest.approx(float(spikes.mean()))
    assert _activity("conv", conv, (spikes * 0.5,), 1).accumulates is None


def test_linear_layers_and_products_of_spikes():
    spikes = (torch.rand(2, 5, 6) < 0.4).float()
    found = _activity("linear", nn.Linear(6, 7), (spikes,), 2)
    assert (found.macs, found.accumulates) == (5 * 6 * 7, float(spikes.sum()) * 7 / 2)
    dense = torch.randn(2, 6, 3)
    found = _activity("product", SpikeMatmul(), (spikes, dense), 2)
    assert (found.macs, found.accumulates) == (5 * 6 * 3, float(spikes.sum()) * 3 / 2)
    both = _activity("product", SpikeMatmul(), (spikes, torch.zeros(2, 6, 3)), 2)
    assert both.accumulates == 0
    assert _activity("product", SpikeMatmul(), (dense.mT, dense), 2).accumulates is None


@pytest.mark.parametrize("fields", [{}, {"pool_size": 4}, {"in_size": (34, 40)}])
def test_counting_while_running_agrees_with_the_formula(fields):
    config = MambaSpikeConfig(**{"time_steps": 4, "in_size": (32, 32), "depth": 2, **fields})
    counted = count_by_running(meta_model(config).eval(), config.in_size, config.time_steps)
    formula = count_flops(config)
    assert counted["scan"] == formula.by_part["scan"]
    assert sum(counted.values()) == formula.total
