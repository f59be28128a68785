"""The forms for PyTorch's compiler: each gives what its node gives, and a rewritten program has no node left."""

import pytest
import torch
from tests.deploy.networks import as_int8

from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.export.graph import make_graph
from ripe_mambaspike.deploy.export.inductor_forms import INDUCTOR_FORMS, rewrite_for_inductor
from ripe_mambaspike.deploy.export.trace import trace_graph
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.ops.graph_nodes import graph_nodes, node_operator

SMALL = {"stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "time_steps": 3, "form": "deployed"}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def both(name, *inputs):
    """What the form and the node give."""
    outputs = INDUCTOR_FORMS[name](*inputs), node_operator(name)(*inputs)
    return [one if isinstance(one, tuple) else (one,) for one in outputs]


def require_equal(name, *inputs, **tolerance):
    for found, wanted in zip(*both(name, *inputs), strict=True):
        torch.testing.assert_close(found, wanted, **tolerance or {"rtol": 0, "atol": 0})


@pytest.mark.parametrize("rotating", [True, False])
@pytest.mark.parametrize("state", ["none", "zeros", "drawn"])
@pytest.mark.parametrize("size", [(3, 5), (7,)])
def test_neurons_fire_exactly_as_before(rotating, state, size):
    decay, gain, threshold = draw(6).sigmoid(), draw(6).exp(), draw(6).exp() / 2
    real, imag = (draw(2, 6, *size), draw(2, 6, *size, seed=1))
    if state == "zeros":
        real, imag = torch.zeros_like(real), torch.zeros_like(imag)
    before = (None, None) if state == "none" else (real, imag if rotating else None)
    x = 2 * draw(2, 4, 6, *size)
    require_equal("fire", x, decay, draw(6, seed=1).sin() if rotating else None, gain, threshold, *before, 0.5)
    fired = both("fire", x, decay, None, gain, threshold, None, None, 0.5)[0][0]
    assert 0 < fired.mean() < 1


def test_projections():
    require_equal("project", draw(5, 6), draw(2, 3, 6, 7), rtol=1e-5, atol=1e-5)


def test_attention_in_the_hull_of_the_values():
    query, key, value = (draw(2, 3, 4, 7, seed=seed) for seed in range(3))
    require_equal("attend", query.exp(), key.exp(), value, 1e-5, rtol=1e-5, atol=1e-5)
    require_equal("attend", query.exp(), key.exp(), torch.full_like(value, 0.1), 1e-5)  # clamped, so exact


@pytest.mark.parametrize("size", [(17, 9), (10, 10), (5, 6)])
def test_pooling(size):
    spikes = (draw(3, 4, *size) > 0).float()
    require_equal("pool", spikes, 5, 5, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rates(dtype):
    require_equal("rates", (draw(2, 4, 3, 5, 5) > 0).to(dtype))


@pytest.mark.parametrize("length", [1, 31, 70, 250, 600])  # one chunk, several, and more than are combined in turn
@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("lead", [(1,), (2, 3)])
def test_scans(length, stateful, lead):
    decay = -draw(*((2, 1) if len(lead) == 2 else ()), 5, 4).exp()  # one for each sequence, or one for all
    delta = draw(*lead, length, 5).abs() / 4
    state = draw(*lead, 5, 4) if stateful else None
    weights = (draw(*lead, length, 4), draw(*lead, length, 4, seed=1))
    require_equal("scan", draw(*lead, length, 5), delta, decay, *weights, state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("int8", [False, True])
@torch.no_grad()
def test_no_node_is_left_and_outputs_agree(causal, int8):
    network = create_model("nmnist", seed=0, **SMALL, causal=causal).eval()
    if int8:
        name = next(name for name, _ in network.named_parameters() if "in_proj" in name)
        network.stored = {name: as_int8(network.get_parameter(name))}
    for kind in ("clip", "step", *(() if causal else ("tail",))):
        graph = make_graph(kind, network, 18, 20, network.stored if int8 else None)
        with graph_nodes(*INDUCTOR_FORMS):
            program = trace_graph(graph, dynamic=False)
        assert any("ripe_graph" in str(node.target) for node in program.graph.nodes)
        rewritten = rewrite_for_inductor(program)
        assert not any("ripe_graph" in str(node.target) for node in rewritten.graph.nodes)
        kept = {value.dtype for value in rewritten.state_dict.values()}
        assert (torch.int8 in kept) == int8
        inputs = list(graph.example)
        if kind == "clip":
            inputs = [synthetic_clip(3, 18, 20)]
        elif kind == "step":
            inputs[0] = synthetic_clip(3, 18, 20)[:, 0]
        else:
            inputs = [draw(*one.shape) for one in inputs]
        for found, wanted in zip(_call(rewritten, inputs), _call(program, inputs), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def _call(program, inputs):
    out = program.module()(*inputs)
    return out if isinstance(out, tuple | list) else (out,)


def test_a_program_with_a_long_scan_is_rewritten():
    """Its chunks are combined by doubling, which must not make constant tensors: a decomposition cannot lift them."""

    class Scan(torch.nn.Module):
        def forward(self, x, delta, b, c):
            return node_operator("scan")(x, delta, -torch.ones(5, 4), b, c, None)[0]

    inputs = draw(1, 600, 5), draw(1, 600, 5).abs(), draw(1, 600, 4), draw(1, 600, 4, seed=1)
    program = torch.export.export(Scan(), inputs, strict=False)
    found = rewrite_for_inductor(program).module()(*inputs)
    torch.testing.assert_close(found, Scan()(*inputs), rtol=1e-4, atol=1e-5)
