"""Spikformer: its size, and its attention by hand."""

import torch
from tests.models.peers.peer_checks import clip, leaky_by_hand, loud_network
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import meta_model, model_config


def test_parameters():
    """Printed: 2.57 M."""
    assert meta_model(model_config("spikformer")).parameter_count() == 2_566_923
    assert meta_model(model_config("spikformer", num_classes=10)).parameter_count() == 2_566_666


def test_patches_of_16_by_16():
    model = meta_model(model_config("spikformer"))
    assert model.patches(torch.empty(1, 16, 2, 128, 128, device="meta")).shape == (1, 16, 256, 8, 8)
    assert model.patches(torch.empty(1, 10, 2, 34, 34, device="meta")).shape == (1, 10, 256, 3, 3)


@torch.no_grad()
def test_attention_by_hand():
    """softmax-free: every query adds up the values of all tokens, each as often as query and key share a spike."""
    model = loud_network("spikformer", torch.float64, embed_dim=16, num_heads=2, mlp_ratio=1, depth=1)
    layer = model.blocks[0].attention
    x = torch.poisson(torch.full((2, 4, 16, 2, 3), 0.7, dtype=torch.float64))
    q, k, v = (part.flatten(3) for part in leaky_by_hand(layer.qkv(x)).chunk(3, 2))  # [B, T, C, N]
    mixed = torch.zeros_like(q)
    for sample in range(2):
        for step in range(4):
            for channel in range(16):
                head = range(0, 8) if channel < 8 else range(8, 16)
                for query in range(6):
                    for key in range(6):
                        shared = sum(float(q[sample, step, c, query] * k[sample, step, c, key]) for c in head)
                        mixed[sample, step, channel, query] += 0.25 * shared * v[sample, step, channel, key]
    spikes = leaky_by_hand(mixed, threshold=0.5).unflatten(3, (2, 3))
    assert 0 < float(spikes.mean()) < 1
    assert torch.equal(layer(x), leaky_by_hand(layer.proj(spikes)))


@torch.no_grad()
def test_blocks_add_spikes_to_spikes():
    model = loud_network("spikformer", embed_dim=16, num_heads=2)
    patches = model.patches(clip())
    assert set(patches.unique().tolist()) == {0.0, 1.0, 2.0}
    assert float(model.blocks(patches).max()) > 2


def test_widths_that_do_not_divide():
    with raises(ConfigError, "embed_dim"):
        create_model("spikformer", embed_dim=24, num_heads=16)
    with raises(ConfigError, "embed_dim"):
        create_model("spikformer", embed_dim=20, num_heads=2)
