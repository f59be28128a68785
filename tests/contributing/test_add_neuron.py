"""A neuron added by the recipe: one file, the reference path, and the exports that its class says it can do."""

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model, from_pretrained, fuse
from ripe_mambaspike.deploy.export.pipeline import export
from ripe_mambaspike.deploy.export.run import load_exported
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.neurons import NEURONS

FIELDS = {
    "stage_channels": (4, 8, 8),
    "embed_dims": (4, 8, 8),
    "time_steps": 3,
    "in_size": 16,
    "num_classes": 3,
    "neurons": "integrator",
}


@pytest.fixture
def integrator(follow, restored):
    restored(NEURONS)
    return follow("Add a neuron", "integrator").Integrator


@pytest.fixture
def x():
    return synthetic_clip(3, 16, 16, samples=2)


def test_a_neuron(integrator, x, tmp_path):
    model = create_model("nmnist", seed=0, **FIELDS)
    model(x).sum().backward()
    assert model.stages[0].first_neuron.threshold.grad.abs().sum() > 0
    model.eval()
    fused = fuse(model, quiet=True)
    with torch.no_grad():
        logits = model(x)
        torch.testing.assert_close(fused(x), logits)
        saved = from_pretrained(model.save_pretrained(tmp_path / "net"))
        assert torch.equal(saved(x), logits)
    with raises(ConfigError, field="neurons"):
        export(tmp_path / "net", tmp_path / "nir", to="nir")
    export(tmp_path / "net", tmp_path / "safetensors", to="safetensors")
    assert torch.equal(from_pretrained(tmp_path / "safetensors")(x), fused(x))


def test_its_state_is_float32_in_half_precision(integrator):
    """Sixty-four currents of 0.1 over a threshold of 100: bfloat16 has lost most of them by then."""
    neuron, x = integrator(1).bfloat16(), torch.full((1, 64, 1, 1, 1), 0.1, dtype=torch.bfloat16)
    with torch.no_grad():
        neuron.threshold.fill_(100)
        (spikes, potential), state = neuron(x)
        first = neuron(x[:, :20])[1]
        second = neuron(x[:, 20:], initial_state=first)[1]
    assert (spikes.dtype, potential.dtype, state["membrane"].dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    expected = x.float().sum()
    torch.testing.assert_close(state["membrane"].sum(), expected, rtol=1e-6, atol=0)
    assert torch.equal(second["membrane"], state["membrane"])


@pytest.mark.slow
def test_its_export(integrator, x, tmp_path):
    """Its forward is traced, and the graph agrees with PyTorch; a class that does not say that it can is refused."""
    network = create_model("nmnist", seed=0, **FIELDS | {"time_steps": 2}).eval()
    network.save_pretrained(tmp_path / "net")
    export(tmp_path / "net", tmp_path / "graph", to="torch-export", graphs=("clip",), static=True)
    with torch.no_grad():
        torch.testing.assert_close(load_exported(tmp_path / "graph")(x[:, :2]), fuse(network, quiet=True)(x[:, :2]))
    integrator.exportable = False
    with raises(ConfigError, field="neurons"):
        export(tmp_path / "net", tmp_path / "refused", to="torch-export")
