"""The batch norm of other networks: PyTorch's numbers, saved without a counter."""

import pytest
import torch
from torch import nn

from ripe_mambaspike.nn.plain_norm import PlainBatchNorm


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 6), (4, 3, 2, 5, 6)])
def test_pytorchs_numbers(shape):
    theirs = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)](3)
    ours = PlainBatchNorm(3)
    for x in torch.randn(3, *shape):
        assert torch.equal(ours(x), theirs(x))
    ours.eval(), theirs.eval()
    x = torch.randn(shape)
    assert torch.equal(ours(x), theirs(x))


def test_saved_without_its_counter():
    norm = PlainBatchNorm(3)
    norm(torch.randn(8, 3))
    saved = norm.state_dict()
    assert set(saved) == {"weight", "bias", "running_mean", "running_var"}
    other = PlainBatchNorm(3)
    other.load_state_dict(saved)
    assert torch.equal(other.running_var, norm.running_var)
