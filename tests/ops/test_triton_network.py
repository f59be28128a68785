"""A small network, forward and backward, over the Triton kernels in the interpreter against float64."""

import copy

import pytest
import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.ops.backend import kernels

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _triton_everywhere():
    """Operators use the Triton kernels wherever their tensors lie."""
    pytest.importorskip("triton", reason="Triton is not installed")
    with kernels("triton"):
        yield


RELAXED = ForwardMode(relaxed=True)
FIELDS = {
    "stage_channels": (16, 16, 16),
    "embed_dims": (16, 16, 16),
    "time_steps": 2,
    "num_classes": 3,
    "drop_path_rate": 0.0,
}


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
def test_relaxed_training_pass_and_its_gradients(causal):
    model = create_model("nmnist", seed=0, causal=causal, **FIELDS)
    randomize(model, 0)
    model.train()
    exact = copy.deepcopy(model).double()
    x = synthetic_clip(2, 9, 8, samples=2)
    results = []
    for network, clip, choice in ((exact, x.double(), "off"), (model, x, "triton")):
        with kernels(choice):
            out = network.run(clip, RELAXED)
            (out.logits.square().mean() + out.rates.sum()).backward()
        results.append((out, {name: p.grad for name, p in network.named_parameters() if p.grad is not None}))
    (expected, wanted), (given, got) = results
    assert float((given.logits - expected.logits).abs().max()) <= 1e-4 * float(expected.logits.abs().max())
    for name, gradient in wanted.items():
        scale = max(1e-3, float(gradient.abs().max()))
        assert float((got[name] - gradient).abs().max()) <= 2e-3 * scale, name


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@torch.no_grad()
def test_inference(causal):
    model = create_model("nmnist", seed=0, form="deployed", causal=causal, **FIELDS)
    model.eval()
    x = synthetic_clip(2, 9, 8, samples=1)
    with kernels("off"):
        expected = copy.deepcopy(model).double().run(x.double(), RELAXED)
    given = model.run(x, RELAXED)
    assert float((given.logits - expected.logits).abs().max()) <= 1e-4 * float(expected.logits.abs().max())
