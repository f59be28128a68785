"""A neuron of one's own on both paths; the recipes themselves are followed in tests/contributing."""

import pytest
import torch
from torch import nn

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.fused import kernels_cover
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.models.registry import register_model
from ripe_mambaspike.nn.attention import register_attention
from ripe_mambaspike.nn.mixers import register_mixer
from ripe_mambaspike.nn.neurons import NEURONS, ConstantsNeuron, register_neuron
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.norm_fire import NeuronConstants


@pytest.fixture(autouse=True)
def forget():
    """What a test registers is gone afterwards."""
    before = dict(NEURONS)
    yield
    NEURONS.clear()
    NEURONS.update(before)


class Plain(nn.Module):
    """A neuron that no kernel computes: it fires where the sum of its inputs grows by one."""

    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.full((channels, 1, 1), 0.5))

    def forward(self, x, mode, initial_state=None, keep_potential=True):
        before = initial_state["total"] if initial_state else torch.zeros_like(x[:, 0])
        total = before.unsqueeze(1) + (x * self.gain).relu().cumsum(1)
        last = torch.cat((before.unsqueeze(1), total[:, :-1]), 1)
        return ((total.floor() > last.floor()).to(x.dtype), total), {"total": total[:, -1]}


class Fused(ConstantsNeuron):
    """A leaky neuron with a gain of its own: its constants are all that the kernels need."""

    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.full((channels,), 1.5))

    def constants(self, device):
        ones = torch.ones_like(self.gain)
        return NeuronConstants(0.5 * ones, None, self.gain, ones)


def pieces(model, x):
    state, features = None, []
    for step in range(x.shape[1]):
        front = model.front_end(x[:, step : step + 1], state=state, first_step=step)
        state = front.state
        features.append(front.features)
    return torch.cat(features, 1)


@torch.no_grad()
def test_a_neuron_without_kernels_takes_the_reference_path(small, events, caplog, tmp_path):
    register_neuron("plain")(Plain)
    model = small(neurons="plain").eval()
    x = events()
    assert not kernels_cover(model, x)
    assert [line for line in caplog.messages if "Plain" in line and "reference path" in line]
    torch.testing.assert_close(pieces(model, x), model.front_end(x).features, rtol=1e-4, atol=1e-5)
    model.save_pretrained(tmp_path)
    assert torch.equal(from_pretrained(tmp_path)(x), model(x))


@torch.no_grad()
def test_a_neuron_with_constants_runs_on_the_kernels(small, events):
    register_neuron("fused")(Fused)
    model = small(neurons="fused").eval()
    x = events()
    with kernels("plain"):
        assert kernels_cover(model, x)
        fused = model(x)
        torch.testing.assert_close(pieces(model, x), model.front_end(x).features, rtol=1e-4, atol=1e-5)
    with kernels("off"):
        torch.testing.assert_close(model(x), fused, rtol=1e-4, atol=1e-5)


def test_a_name_is_registered_once():
    for register in (
        register_neuron("lif"),
        register_attention("gate"),
        register_mixer("gru"),
        register_model("nmnist"),
    ):
        with pytest.raises(ConfigError):
            register(Plain)
