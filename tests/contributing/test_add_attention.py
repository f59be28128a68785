"""An attention added by the recipe runs in training, evaluation, fused and exported."""

import pytest
import torch

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.deploy.export.graph import make_graph
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.attention import ATTENTIONS


@pytest.fixture
def model(follow, restored):
    restored(ATTENTIONS)
    follow("Add an attention", "channel_gate")
    fields = {"stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "time_steps": 3, "in_size": 16, "num_classes": 3}
    return create_model("nmnist", seed=0, attention="channel-gate", **fields)


def test_an_attention(model, tmp_path):
    x = synthetic_clip(3, 16, 16, samples=2)
    model(x).sum().backward()
    assert model.stages[0].attention.gain.grad.abs().sum() > 0
    fused = fuse(model.eval(), quiet=True)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x))


@pytest.mark.slow
def test_it_is_exported(model, tmp_path):
    fused = fuse(model.eval(), quiet=True)
    torch_export = export_format("torch-export")
    torch_export.save(make_graph("clip", fused, 16, 16, time_steps=3), tmp_path / "clip.pt2", dynamic=False)
    x = synthetic_clip(3, 16, 16)
    (logits, *_) = torch_export.load(tmp_path / "clip.pt2", trust=True)(x)
    torch.testing.assert_close(logits, fused(x), rtol=1e-4, atol=1e-5)
