"""Networks in which every layer fires and no parameter has its initial value; the difference between two of them."""

import pytest
import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.norm import BatchNorm, TimeBatchNorm

SMALL = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 5}


@torch.no_grad()
def make_loud(model, seed=0):
    """Random statistics, affine, filters and mixing weights, with norms so loud that all six layers spike."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(tensor, low, high):
        tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * (high - low) + low)

    for part in model.modules():
        if isinstance(part, BatchNorm | TimeBatchNorm):
            uniform(part.running_mean, -0.3, 0.3)
            uniform(part.running_var, 0.5, 1.5)
            loud = 3.0 if isinstance(part, TimeBatchNorm) else 1.0
            uniform(part.weight, 0.5 * loud, 1.5 * loud)
            uniform(part.bias, -0.3, 0.6)
        if getattr(part, "coefficient", None) is not None:
            uniform(part.coefficient, -0.4, 0.4)
        if getattr(part, "mix", None) is not None:
            uniform(part.mix, -1, 1)
        if hasattr(part, "threshold"):
            uniform(part.threshold, 0.6, 1.2)
    return model


@pytest.fixture
def loud():
    def make(name="nmnist", *, seed=0, **overrides):
        return make_loud(create_model(name, seed=seed, **{**SMALL, **overrides}), seed)

    return make


@pytest.fixture
def exporting(monkeypatch):
    """Operators take the form that torch.export traces."""
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)


@pytest.fixture(scope="session")
def registered():
    """A registered network at its own size, but for the two widest."""

    def make(name, seed=0):
        narrow = SMALL | {"head_hidden_size": 64} if name.startswith("dailydvs200") else {}
        return make_loud(create_model(name, seed=seed, **narrow), seed)

    return make


@torch.no_grad()
def outputs(model, x):
    """Every output of a network that can be observed, by name; spikes among them.

    The pass is literal: a training network runs every branch and norm, not the kernels it will be deployed with.
    """
    model, mode = model.to(x.dtype).eval(), ForwardMode(literal=True)
    front = model.front_end(x, mode, observe=("spikes", "attention"))
    return front.observed | {"bridge": front.features, "logits": model.run(x, mode).logits}


@pytest.fixture
def apart():
    """(largest relative error of any output, spikes that differ, lowest rate of the six layers)."""

    def measure(first, second, dtype, side=34, samples=2):
        x = synthetic_clip(first.config.time_steps, side, side, samples, seed=3).to(dtype)
        ours, theirs = outputs(first, x), outputs(second, x)
        errors = [((ours[k] - theirs[k]).abs().max() / ours[k].abs().max().clamp(min=1e-30)).item() for k in ours]
        spikes = [name for name in ours if name.endswith("spikes")]
        flips = sum(int((ours[name] != theirs[name]).sum()) for name in spikes)
        return max(errors), flips, min(ours[name].float().mean().item() for name in spikes)

    return measure
