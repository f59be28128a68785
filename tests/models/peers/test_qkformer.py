"""QKFormer: its size, its token attention by hand, and the sizes of its shortcuts."""

import pytest
import torch
from tests.models.peers.peer_checks import leaky_by_hand, loud_network
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import meta_model, model_config


def test_parameters():
    """Printed: 1.50 M."""
    assert meta_model(model_config("qkformer")).parameter_count() == 1_504_138


@pytest.mark.parametrize("side", [128, 64, 34, 37])
def test_two_resolutions(side):
    model = meta_model(model_config("qkformer"))
    fine = model.first_patches(torch.empty(1, 2, 2, side, side, device="meta"))
    assert fine.shape == (1, 2, 128, -(-side // 8), -(-side // 8))
    assert model.second_patches(fine).shape == (1, 2, 256, -(-side // 16), -(-side // 16))


@torch.no_grad()
def test_token_attention_by_hand():
    """A token of a head passes its key where enough channels of its query fire."""
    model = loud_network("qkformer", torch.float64, embed_dim=16, num_heads=2)
    layer = model.first_stage[0].attention
    x = torch.poisson(torch.full((2, 4, 8, 2, 3), 0.5, dtype=torch.float64))
    q, k = leaky_by_hand(layer.qk(x)).chunk(2, 2)
    first, second = (
        leaky_by_hand(sum(q[:, :, channel] for channel in head), threshold=0.5) for head in (range(4), range(4, 8))
    )
    assert 0 < float(first.mean()) < 1
    masked = torch.zeros_like(k)
    for channel in range(8):
        masked[:, :, channel] = k[:, :, channel] * (first if channel < 4 else second)
    torch.testing.assert_close(layer(x), leaky_by_hand(layer.proj(masked)), rtol=0, atol=0)


@torch.no_grad()
def test_embedding_with_a_deformed_shortcut():
    patches = loud_network("qkformer", embed_dim=16, num_heads=1).second_patches
    x = torch.poisson(torch.full((2, 4, 8, 5, 6), 0.5))
    conv, norm = patches.shortcut.conv, patches.shortcut.norm
    taken = x[..., ::2, ::2].flatten(0, 1)  # a 1×1 kernel of stride 2 reads every second pixel
    current = norm(torch.einsum("oi,nihw->nohw", conv.weight[:, :, 0, 0], taken)).unflatten(0, (2, 4))
    wanted = patches.layers(x) + leaky_by_hand(current)
    assert float((patches(x) != wanted).float().mean()) < 1e-3  # a current at the threshold may round to either side


def test_widths_that_do_not_divide():
    with raises(ConfigError, "embed_dim"):
        create_model("qkformer", embed_dim=48, num_heads=16)
