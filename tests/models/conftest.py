"""Small networks of every kind, and events for them."""

import shutil

import pytest
import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.models.synthetic import synthetic_clip

SMALL = {
    "stage_channels": (8, 12, 16),
    "embed_dims": (8, 16, 24),
    "time_steps": 5,
    "num_classes": 7,
    "drop_path_rate": 0.0,
}


@pytest.fixture(scope="session")
def small():
    """A narrow RIPE-MambaSpike, any field of it overridden."""

    def make(**overrides):
        return create_model("nmnist", seed=overrides.pop("seed", 0), **{**SMALL, **overrides})

    return make


@pytest.fixture(scope="session")
def saved_once(small, tmp_path_factory):
    return small().save_pretrained(tmp_path_factory.mktemp("saved") / "network")


@pytest.fixture
def saved(saved_once, tmp_path):
    """The folder of a saved network, which a test may change."""
    return shutil.copytree(saved_once, tmp_path / "saved")


@pytest.fixture(scope="session")
def tiny_baseline():
    def make(**overrides):
        fields = {
            "channels": (4, 5, 6),
            "embed_dim": 16,
            "depth": 2,
            "time_steps": 7,
            "in_size": (13, 18),
            "num_classes": 3,
        }
        return create_model("mamba-spike", seed=0, **{**fields, **overrides})

    return make


@pytest.fixture(scope="session")
def events():
    def make(height=18, width=None, steps=5, samples=2, dtype=torch.float32, seed=0):
        return synthetic_clip(steps, height, width or height, samples, seed).to(dtype)

    return make


@pytest.fixture(scope="session")
def louder():
    """Random statistics, affine and filters, and norms so loud that every layer fires; returns the network."""

    @torch.no_grad()
    def change(model, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def uniform(tensor, low, high):
            tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * (high - low) + low)

        for name, tensor in model.state_dict(keep_vars=True).items():
            if name.endswith("running_mean"):
                uniform(tensor, -0.3, 0.3)
            elif name.endswith("running_var"):
                uniform(tensor, 0.5, 1.5)
            elif name.endswith("coefficient"):
                uniform(tensor, -0.4, 0.4)
            elif name.endswith("norm.weight") and tensor.ndim == 2:
                uniform(tensor, 2.0, 4.0)
            elif name.endswith("norm.bias") and tensor.ndim == 2:
                uniform(tensor, -0.5, 1.0)
        return model

    return change
