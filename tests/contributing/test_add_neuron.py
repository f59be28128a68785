"""A neuron added by the recipe: one file, the reference path, and no export unless it says that it can."""

import torch
from tests.raising import raises

from ripe_mambaspike import create_model, from_pretrained, fuse
from ripe_mambaspike.deploy.export.pipeline import export
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


def test_a_neuron(follow, restored, tmp_path):
    restored(NEURONS)
    follow("Add a neuron", "integrator")
    model = create_model("nmnist", seed=0, **FIELDS)
    x = synthetic_clip(3, 16, 16, samples=2)
    model(x).sum().backward()
    assert model.stages[0].first_neuron.threshold.grad.abs().sum() > 0
    model.eval()
    fused = fuse(model, quiet=True)
    with torch.no_grad():
        logits = model(x)
        torch.testing.assert_close(fused(x), logits)
        saved = from_pretrained(model.save_pretrained(tmp_path / "net"))
        assert torch.equal(saved(x), logits)
    for target in ("torch-export", "nir"):
        with raises(ConfigError, field="neurons"):
            export(tmp_path / "net", tmp_path / target, to=target)
    export(tmp_path / "net", tmp_path / "safetensors", to="safetensors")
    assert torch.equal(from_pretrained(tmp_path / "safetensors")(x), fused(x))
