"""A mixer added by the recipe has the budget of the Mamba blocks that it replaces."""

import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn import mixers


def test_a_mixer(follow, restored):
    restored(mixers.MIXERS)
    module = follow("Add a mixer", "average_mixer")
    fields = {"stage_channels": (8, 8, 16), "embed_dims": (8, 16, 32), "time_steps": 3, "in_size": 16}
    model = create_model("nmnist", seed=0, mixer="average", **fields)
    assert sum(isinstance(part, module.Average) for part in model.modules()) == 3
    mamba = create_model("nmnist", seed=0, **fields)
    assert abs(model.parameter_count() / mamba.parameter_count() - 1) < 0.05
    with torch.no_grad():
        assert model.eval()(synthetic_clip(3, 16, 16)).shape == (1, 3, 10)
