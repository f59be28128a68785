"""SpikePool against its description, window by window."""

import pytest
import torch
from tests.models.peers.peer_checks import calibrated, check_network
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import meta_model, model_config


@pytest.fixture
def small():
    return create_model("spikepool", seed=0, embed_dim=16, mlp_ratio=2, num_classes=5, in_size=64)


@pytest.mark.parametrize(
    ("name", "printed", "counted", "with_101_classes"),
    [("spikepool", 0.55e6, 546_058, 557_797), ("spikepool-large", 2.19e6, 2_170_378, 2_193_765)],
)
def test_the_printed_counts_are_met(name, printed, counted, with_101_classes):
    assert meta_model(model_config(name)).parameter_count() == counted
    assert abs(counted - printed) < 0.01 * printed
    assert meta_model(model_config(name, num_classes=101)).parameter_count() == with_101_classes


def test_the_checks_of_every_network(small, events, tmp_path):
    x = events(64, steps=3)
    calibrated(small, x)
    louder(small)
    check_network(small, x, steps=3, spiking_layers=4 + 2 * 3 + 1, folder=tmp_path)


def louder(model):
    """Raise the potentials that the last neuron reads: means over a grid seldom reach its threshold."""
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.contract.norm.bias += torch.linspace(-1, 3, 16)


def slow_leaky(x):
    out, membrane = torch.empty_like(x), torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        membrane = membrane + (x[:, t] - membrane) / 2
        out[:, t] = (membrane >= 1).to(x.dtype)
        membrane = membrane * (1 - out[:, t])
    return out


def slow_conv_norm(layer, x):
    """Pointwise, with the running statistics."""
    shape = (1, 1, -1, 1, 1)
    x = torch.einsum("btchw,dc->btdhw", x, layer.conv.weight[:, :, 0, 0]) + layer.conv.bias.view(shape)
    x = (x - layer.norm.running_mean.view(shape)) / (layer.norm.running_var.view(shape) + 1e-5).sqrt()
    return x * layer.norm.weight.view(shape) + layer.norm.bias.view(shape)


@torch.no_grad()
@pytest.mark.parametrize("window", [1, 3, 5])
def test_a_block_pools_spikes_over_neighbors(events, window):
    model = create_model("spikepool", seed=0, embed_dim=16, mlp_ratio=2, pool_size=window).double()
    calibrated(model, events(64, steps=4, dtype=torch.float64))
    block = model.blocks[0]
    x = 2 * torch.randn(2, 4, 16, 4, 6, dtype=torch.float64)
    spikes, reach = slow_leaky(x), window // 2
    pooled = torch.empty_like(spikes)
    for row in range(4):
        for column in range(6):
            rows = slice(max(0, row - reach), row + reach + 1)
            columns = slice(max(0, column - reach), column + reach + 1)
            pooled[..., row, column] = spikes[..., rows, columns].amax((-2, -1))
    after = x + slow_conv_norm(block.proj, pooled)
    hidden = slow_leaky(slow_conv_norm(block.mlp.expand, slow_leaky(after)))
    torch.testing.assert_close(block(x), after + slow_conv_norm(block.mlp.contract, hidden))


@torch.no_grad()
def test_features_are_spikes_of_the_mean_potential(small, events):
    x = events(64, steps=4)
    calibrated(small, x)
    louder(small)
    potentials = small.blocks(small.patches(x))
    features = small.forward_features(x)
    assert 0 < features.mean() < 1
    torch.testing.assert_close(features, slow_leaky(potentials.sum((3, 4)) / 16))


@torch.no_grad()
def test_patches_are_split_by_four_pools(small, events):
    """Conv, norm, neuron and pool three times; conv, norm, pool; then the position encoding is added."""
    x = events(34, 50, steps=3, dtype=torch.float64)
    split = calibrated(small.double(), x).patches
    y = x
    for index in range(3):
        y = slow_pool(slow_leaky(split.convs[index](y)))
    y = slow_pool(split.convs[3](y))
    assert y.shape == (2, 3, 16, 3, 4)
    torch.testing.assert_close(split(x), y + split.position(slow_leaky(y)))


def slow_pool(x):
    """3×3 windows of stride 2; what is outside never wins."""
    height, width = x.shape[3:]
    padded = torch.full((*x.shape[:3], height + 2, width + 2), -torch.inf, dtype=x.dtype)
    padded[..., 1:-1, 1:-1] = x
    rows = [
        torch.stack([padded[..., r : r + 3, c : c + 3].amax((-2, -1)) for c in range(0, width, 2)], -1)
        for r in range(0, height, 2)
    ]
    return torch.stack(rows, -2)


@torch.no_grad()
def test_order_matters_and_later_steps_do_not(small, events):
    x = events(64, steps=4)
    calibrated(small, x)
    louder(small)
    logits = small(x)
    assert (small(x.flip(1)).mean(1) - logits.mean(1)).abs().max() > 1e-3
    torch.testing.assert_close(small(x[:, :2]), logits[:, :2])


@pytest.mark.parametrize(("field", "value"), [("embed_dim", 12), ("pool_size", 2), ("depth", 0)])
def test_sizes_are_checked(field, value):
    with raises(ConfigError, field=field):
        create_model("spikepool", **{field: value})
