"""A small network over the Triton kernels, run by their interpreter, against the reference path in float64.

For inference its bridge convolves spikes instead of rates.
"""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.ops.backend import kernels

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("triton_kernels")]
RELAXED = ForwardMode(relaxed=True)
FIELDS = {
    "stage_channels": (16, 16, 16),
    "embed_dims": (8, 16, 16),
    "time_steps": 3,
    "num_classes": 3,
    "drop_path_rate": 0.0,
    "mixer": "gru",  # the scan takes long in the interpreter
}
WITH_SCAN = {"mixer": "mamba", "embed_dims": (16, 16, 16), "time_steps": 2}
JOINED = {"pooled_spikes", "joined_tokens"}


class Called(TorchDispatchMode):
    """The names of our operators that ran."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "ripe":
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def made(**fields):
    model = create_model("nmnist", seed=0, **{**FIELDS, **fields})
    randomize(model, 0)
    return model.eval()


def exactly(model, x, mode, **options):
    with kernels("off"):
        return copy.deepcopy(model).double().run(x.double(), mode, **options)


def ran(model, x, mode=RELAXED, **options):
    with Called() as called:
        out = model.run(x, mode, **options)
    return out, called.names


def assert_near(given, expected, tolerance=1e-5):
    assert float((given.logits - expected.logits).abs().max()) <= tolerance * float(expected.logits.abs().max())


@pytest.mark.parametrize(
    "fields",
    [{}, {"causal": True}, {"d_state": 8, "d_conv": 3, "expand": 1, "bridge_dim": 12, "attention_feature_map": "exp"}],
    ids=["whole", "causal", "sizes"],
)
def test_relaxed_training_pass_and_its_gradients(fields):
    model, x = made(**WITH_SCAN, **fields).train(), synthetic_clip(2, 9, 8, samples=2)
    results = []
    for network, clip, choice in ((copy.deepcopy(model).double(), x.double(), "off"), (model, x, "triton")):
        with kernels(choice):
            out = network.run(clip, RELAXED)
            (out.logits.square().mean() + out.rates.sum()).backward()
        results.append((out, {name: p.grad for name, p in network.named_parameters() if p.grad is not None}))
    (expected, wanted), (given, got) = results
    assert_near(given, expected, 1e-4)
    for name, gradient in wanted.items():
        scale = max(1e-3, float(gradient.abs().max()))
        assert float((got[name] - gradient).abs().max()) <= 2e-3 * scale, name


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@torch.no_grad()
def test_inference_with_the_scan(causal):
    model = made(form="deployed", causal=causal, **WITH_SCAN)
    x = synthetic_clip(2, 9, 8, samples=1)
    assert_near(model.run(x, RELAXED), exactly(model, x, RELAXED), 1e-4)


@pytest.mark.parametrize("mode", [HARD, RELAXED], ids=["hard", "relaxed"])
@pytest.mark.parametrize(
    "fields", [{}, {"form": "deployed"}, {"bridge": "stage3"}, {"time_steps": 1}, {"bridge_dim": 12}], ids=str
)
@torch.no_grad()
def test_inference(fields, mode):
    model = made(**fields)
    x = synthetic_clip(fields.get("time_steps", 3), 9, 8, samples=1)
    given, names = ran(model, x, mode)
    assert names >= JOINED
    assert "pooled_rates" not in names
    assert_near(given, exactly(model, x, mode))


@torch.no_grad()
def test_odd_sides_and_a_batch():
    model, x = made(form="deployed"), synthetic_clip(2, 34, 34, samples=2)
    given, names = ran(model, x)
    assert names >= JOINED
    assert_near(given, exactly(model, x, RELAXED))


@torch.no_grad()
def test_selected_tokens_keep_the_rates():
    model, x = made(num_tokens=2), synthetic_clip(3, 16, 16, samples=2)
    given, names = ran(model, x, HARD)
    assert not names & JOINED
    assert_near(given, exactly(model, x, HARD))
    model = made()
    indices = torch.tensor([[0, 3], [1, 2]])
    given, names = ran(model, x, token_indices=indices)
    assert not names & JOINED
    assert_near(given, exactly(model, x, RELAXED, token_indices=indices))


def test_gradients_and_batch_statistics_keep_the_rates():
    model, x = made(), synthetic_clip(3, 9, 8, samples=2)
    _, names = ran(model, x)
    assert not names & JOINED
    model.train()
    with torch.no_grad():
        _, names = ran(model, x)
    assert not names & JOINED


@torch.no_grad()
def test_exported_and_compiled():
    model, x = made(form="deployed", mixer="none"), synthetic_clip(3, 9, 8, samples=2)
    expected = model(x)
    program = torch.export.export(model, (x,))
    targets = {
        str(node.target) for m in program.graph_module.modules() if hasattr(m, "graph") for node in m.graph.nodes
    }
    assert {target.split(".")[1] for target in targets if target.startswith("ripe.")} >= JOINED
    torch.testing.assert_close(program.module()(x), expected, rtol=1e-5, atol=1e-6)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-6)
