"""A network's inference by Triton kernels, whose bridge convolves spikes, against the reference path in float64."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
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
    "embed_dims": (8, 16, 16),
    "time_steps": 3,
    "num_classes": 3,
    "drop_path_rate": 0.0,
    "mixer": "gru",  # the bridge is looked at, not the scan
}
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


def assert_near(given, expected):
    assert float((given.logits - expected.logits).abs().max()) <= 1e-5 * float(expected.logits.abs().max())


@pytest.mark.parametrize("mode", [HARD, RELAXED], ids=["hard", "relaxed"])
@pytest.mark.parametrize("fields", [{}, {"form": "deployed"}, {"bridge": "stage3"}, {"time_steps": 1}], ids=str)
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
