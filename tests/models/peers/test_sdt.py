"""Spike-driven Transformer: its size, and its attention by hand."""

import pytest
import torch
from tests.models.peers.peer_checks import clip, leaky_by_hand, loud_network
from tests.raising import raises
from torch import nn

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import meta_model, model_config


def test_parameters():
    """Printed: 2.57 M."""
    assert meta_model(model_config("sdt")).parameter_count() == 2_566_923
    assert meta_model(model_config("sdt", num_classes=101)).parameter_count() == 2_590_053


@pytest.mark.parametrize(("pooled", "side"), [((2, 3, 4), 16), ((1, 2, 3, 4), 8), ((3, 4), 32), ((), 128)])
def test_pools(pooled, side):
    patches = meta_model(model_config("sdt", pooled=pooled)).patches
    assert patches(torch.empty(1, 2, 2, 128, 128, device="meta")).shape == (1, 2, 256, side, side)


@torch.no_grad()
def test_attention_by_hand():
    """A channel passes where enough of its tokens have a spike of both query and key."""
    model = loud_network("sdt", torch.float64, embed_dim=8, mlp_ratio=1, depth=1)
    layer = model.blocks[0].attention
    x = torch.bernoulli(torch.full((2, 4, 8, 2, 3), 0.4, dtype=torch.float64))
    q, k, v = leaky_by_hand(layer.qkv(x)).chunk(3, 2)
    both = torch.zeros(2, 4, 8, dtype=torch.float64)
    for row in range(2):
        for column in range(3):
            both += ((q[..., row, column] == 1) & (k[..., row, column] == 1)).double()
    passed = leaky_by_hand(both, threshold=0.5)
    assert 0 < float(passed.mean()) < 1
    masked = torch.zeros_like(v)
    masked[passed.bool()] = v[passed.bool()]
    torch.testing.assert_close(layer(x), layer.proj(masked), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_every_convolution_but_the_first_reads_spikes():
    model = loud_network("sdt", embed_dim=16)
    operands = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(lambda _, inputs, name=name: operands.update({name: inputs[0]}))
    model(clip())
    assert [name for name, x in operands.items() if not bool(((x == 0) | (x == 1)).all())] == ["patches.convs.0.conv"]


@pytest.mark.parametrize("pooled", [(3, 2), (0, 1), (2, 2), (5,), "34"])
def test_pools_that_do_not_exist(pooled):
    with raises(ConfigError, "pooled"):
        create_model("sdt", pooled=pooled)
