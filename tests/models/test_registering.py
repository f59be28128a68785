"""A neuron, an attention, a mixer and a model of one's own, each by the recipe in CONTRIBUTING."""

import pytest
import torch
from torch import nn

from ripe_mambaspike import create_model, list_models
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import ARCHITECTURES
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.fused import kernels_cover
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.models.registry import _MODELS, register_model
from ripe_mambaspike.nn.attention import ATTENTIONS, register_attention
from ripe_mambaspike.nn.mixers import MIXERS, register_mixer
from ripe_mambaspike.nn.neurons import NEURONS, register_neuron
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.neurons import lif
from ripe_mambaspike.ops.norm_fire import Neuron


@pytest.fixture(autouse=True)
def forget():
    """What a test registers is gone afterwards."""
    tables = (NEURONS, ATTENTIONS, MIXERS, _MODELS, ARCHITECTURES)
    before = [dict(table) for table in tables]
    yield
    for table, known in zip(tables, before, strict=True):
        table.clear()
        table.update(known)


class Plain(nn.Module):
    """A neuron that no kernel computes."""

    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.full((channels,), 1.5))

    def forward(self, x, mode, initial_state=None, keep_potential=True):
        before = initial_state["membrane"] if initial_state else None
        fired, membrane = lif(x * self.gain[:, None, None], relaxed=mode.relaxed, initial_state=before)
        return fired, {"membrane": membrane}


class Fused(Plain):
    """The same with its constants, so that the kernels compute it."""

    def constants(self, device):
        ones = torch.ones_like(self.gain)
        return Neuron(0.5 * ones, None, self.gain, ones)


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


@torch.no_grad()
def test_an_attention_of_one_s_own(small, events):
    @register_attention("halved")
    class Halved(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.scale = nn.Parameter(torch.full((channels, 1, 1), 0.5))

        def forward(self, potential, spikes, features, initial_state=None):
            return (features * self.scale, features), {}

    model = small(attention="halved").eval()
    x = events()
    with kernels("plain"):
        assert kernels_cover(model, x)
        fused = model(x)
    with kernels("off"):
        torch.testing.assert_close(model(x), fused, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_mixer_of_one_s_own(small, events):
    @register_mixer("doubled")
    class Doubled(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.widen = nn.Bilinear(width, width, width)  # a module that the package does not use

        def forward(self, x):
            return self.widen(x, x)

    model = small(mixer="doubled").eval()
    x = events()
    with kernels("plain"):
        assert kernels_cover(model, x)
        fused = model(x)
    with kernels("off"):
        torch.testing.assert_close(model(x), fused, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError) as caught:
        small(mixer="doubled", causal=True)
    assert caught.value.field == "mixer"


def test_a_model_of_one_s_own(events):
    @register_model("dvsgesture-tiny")
    def tiny():
        return RipeConfig(stage_channels=(4, 4, 4), embed_dims=(4, 4, 4), num_classes=3)

    assert list_models("*tiny*") == ["dvsgesture-tiny"]
    assert create_model("dvsgesture-tiny", time_steps=5)(events()).shape == (2, 5, 3)
    with pytest.raises(ConfigError) as caught:
        register_model("dvsgesture-tiny")(tiny)
    assert caught.value.field == "model"


def test_a_name_is_registered_once():
    for register in (register_neuron("lif"), register_attention("gate"), register_mixer("gru")):
        with pytest.raises(ConfigError):
            register(Plain)
