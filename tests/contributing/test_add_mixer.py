"""A mixer added by the recipe mixes the tokens of every level, in training and evaluation."""

import torch

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn import mixers


def test_a_mixer(follow, restored):
    restored(mixers.MIXERS)
    module = follow("Add a mixer", "average_mixer")
    fields = {"stage_channels": (8, 8, 16), "embed_dims": (8, 16, 32), "time_steps": 3, "in_size": 16}
    model = create_model("nmnist", seed=0, mixer="average", **fields)
    assert sum(isinstance(part, module.Average) for part in model.modules()) == 3
    x = synthetic_clip(3, 16, 16, samples=2)
    model(x).sum().backward()
    assert all(block.expand.weight.grad.abs().sum() > 0 for block in model.hierarchy.blocks)
    with torch.no_grad():
        torch.testing.assert_close(fuse(model.eval(), quiet=True)(x), model(x))
