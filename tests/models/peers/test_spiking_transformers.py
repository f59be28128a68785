"""What all spiking transformers of other authors do, whatever their attention."""

import pytest
import torch
from tests.models.peers.peer_checks import clip, loud_network, neurons
from torch import nn

from ripe_mambaspike import create_model
from ripe_mambaspike.models.pretrained import from_pretrained

SMALL = {
    "spikformer": {"embed_dim": 16, "num_heads": 2, "mlp_ratio": 2},
    "sdt": {"embed_dim": 16, "mlp_ratio": 2},
    "sdt-v2": {"widths": (8, 8, 16, 16), "depths": (1, 1), "num_heads": 1, "mlp_ratio": 2},
    "qkformer": {"embed_dim": 32, "num_heads": 2},
    "statten": {"embed_dim": 16, "num_heads": 2, "mlp_ratio": 2, "chunk_size": 3},
}
NAMES = list(SMALL)


@pytest.fixture(params=NAMES)
def network(request):
    """A small, loud network in evaluation."""
    return loud_network(request.param, **SMALL[request.param])


@torch.no_grad()
def test_logits_of_every_step(network):
    x = clip()
    assert network(x).shape == (2, 4, 5)
    features = network.forward_features(x)
    assert features.shape == (2, 4, network.num_features)
    assert torch.equal(network.forward_head(features), network(x))


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_without_a_head(name):
    model = create_model(name, **{**SMALL[name], "num_classes": 0})
    assert model(clip()).shape == (2, 4, model.num_features)


@torch.no_grad()
def test_every_neuron_fires_and_reports_its_rate(network):
    output = network.run(clip(), observe=["spikes"])
    assert len(output.rates) == network.num_spiking_layers() == len(neurons(network))
    spikes = [output.observed[f"{name}.spikes"] for name in neurons(network)]
    assert all(set(one.unique().tolist()) == {0.0, 1.0} for one in spikes)
    reported = sorted(float(one.mean()) for one in spikes)
    torch.testing.assert_close(sorted(output.rates.tolist()), reported, rtol=1e-6, atol=0)


def test_gradients_reach_every_parameter(network):
    network(clip()).square().sum().backward()
    without = [name for name, p in network.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert without == []


@torch.no_grad()
def test_a_saved_network_gives_the_same_bits(network, tmp_path):
    x = clip(seed=1)
    wanted = network(x)
    assert torch.equal(from_pretrained(network.save_pretrained(tmp_path))(x), wanted)


@torch.no_grad()
def test_the_order_of_steps_matters(network):
    x = clip(seed=1)
    assert not torch.equal(network(x.flip(1)).flip(1), network(x))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "statten"])  # whose attention joins steps
@torch.no_grad()
def test_a_step_does_not_depend_on_later_ones(name):
    network, x = loud_network(name, **SMALL[name]), clip(seed=1)
    changed = x.clone()
    changed[:, -1] = clip(seed=2)[:, -1]
    assert torch.equal(network(changed)[:, :-1], network(x)[:, :-1])
    assert not torch.equal(network(changed), network(x))


@torch.no_grad()
def test_samples_do_not_depend_on_each_other(network):
    x = clip(samples=3, seed=1)
    torch.testing.assert_close(network(x[1:2]), network(x)[1:2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [(33, 50), (64, 32)])
@torch.no_grad()
def test_other_sizes_and_lengths(network, size):
    x = torch.poisson(torch.full((1, 6, 2, *size), 0.3), generator=torch.Generator().manual_seed(0))
    assert bool(network(x).isfinite().all())
    assert network(x).shape[2] == 5


@torch.no_grad()
def test_layers_fire_as_often_in_bfloat16(network):
    """Single spikes near the threshold flip, and with them others after them; rates do not."""
    wanted = network.run(clip()).rates
    with torch.autocast("cpu", torch.bfloat16):
        found = network.run(clip())
    assert bool(found.logits.isfinite().all())
    assert float((found.rates - wanted).abs().mean()) < 0.03


@torch.no_grad()
def test_convolutions_read_channels_last(network):
    strides = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(lambda _, inputs, name=name: strides.update({name: inputs[0].stride(1)}))
    network(clip())
    assert set(strides.values()) == {1}
