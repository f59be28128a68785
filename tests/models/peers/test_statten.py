"""STAtten: its size, its attention by hand, and which steps see each other."""

import math

import torch
from tests.models.peers.peer_checks import clip, leaky_by_hand, loud_network
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import meta_model, model_config

SMALL = {"embed_dim": 16, "num_heads": 2, "mlp_ratio": 1, "depth": 1}


def test_parameters():
    """Printed: 2.57 M, as the network whose attention it replaces."""
    assert meta_model(model_config("statten")).parameter_count() == 2_566_666
    assert meta_model(model_config("sdt", num_classes=10)).parameter_count() == 2_566_666


def test_256_tokens_a_step():
    patches = meta_model(model_config("statten")).patches
    assert patches(torch.empty(1, 2, 2, 64, 64, device="meta")).shape == (1, 2, 256, 16, 16)


@torch.no_grad()
def test_attention_by_hand():
    """Queries of a step add up the values of all tokens of all steps of its chunk; the last chunk is shorter."""
    layer = loud_network("statten", torch.float64, chunk_size=2, **SMALL).blocks[0].attention
    x = torch.bernoulli(torch.full((1, 5, 16, 2, 2), 0.5, dtype=torch.float64))
    q, k, v = (part.flatten(3) for part in leaky_by_hand(layer.qkv(x)).chunk(3, 2))  # [B, T, C, N]
    mixed = torch.zeros_like(q)
    for step, chunk in enumerate([(0, 1), (0, 1), (2, 3), (2, 3), (4,)]):
        for channel in range(16):
            head = range(0, 8) if channel < 8 else range(8, 16)
            for query in range(4):
                for other in chunk:
                    for key in range(4):
                        shared = sum(float(q[0, step, c, query] * k[0, other, c, key]) for c in head)
                        mixed[0, step, channel, query] += shared * v[0, other, channel, key] / math.sqrt(4)
    spikes = leaky_by_hand(mixed, threshold=0.5).unflatten(3, (2, 2))
    assert 0 < float(spikes.mean()) < 1
    torch.testing.assert_close(layer(x), layer.proj(spikes), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_step_sees_later_steps_of_its_chunk_alone():
    model = loud_network("statten", chunk_size=2, **SMALL)
    x = clip(seed=1)
    changed = x.clone()
    changed[:, 3] = clip(seed=2)[:, 3]
    same = (model(changed) == model(x)).all(-1).all(0)
    assert same.tolist() == [True, True, False, False]


def test_heads_that_do_not_divide():
    with raises(ConfigError, "embed_dim"):
        create_model("statten", embed_dim=24, num_heads=16)
