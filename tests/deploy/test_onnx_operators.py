"""Operators that are one node of the program traced for ONNX: onnxruntime gives what the reference gives."""

import pytest
import torch
import torch.nn.functional as F

from ripe_mambaspike import fuse
from ripe_mambaspike.deploy.export.graph import Graph, make_graph
from ripe_mambaspike.deploy.export.onnx_direct import WRITTEN_NODES, needs_no_decomposition
from ripe_mambaspike.deploy.export.onnx_operators import MAX_CHUNK
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.deploy.export.trace import trace_graph
from ripe_mambaspike.deploy.quantize.convert import to_int8
from ripe_mambaspike.models.stored import restore
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.ops.graph_nodes import graph_nodes
from ripe_mambaspike.ops.integer_conv import FILTER_GRID, integer_conv_node, is_on_filter_grid
from ripe_mambaspike.ops.mamba_inner.scan import selective_scan
from ripe_mambaspike.ops.mamba_inner.traced_scan import traced_scan
from ripe_mambaspike.ops.membrane_attention.reference import project
from ripe_mambaspike.ops.neurons import NeuronConstants, fire_over_time
from ripe_mambaspike.ops.tdm import tdm

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
onnx_file = export_format("onnx")


class Module(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *inputs):
        return self.call(*inputs)


def graph_of(call, inputs, outputs):
    names = tuple(f"input{index}" for index in range(len(inputs)))
    return Graph("step", Module(call), inputs, names, tuple(f"output{index}" for index in range(outputs)), {}, {})


def in_onnxruntime(call, inputs, outputs, folder):
    """The outputs of a function of tensors, exported and run."""
    onnx_file.save(graph_of(call, inputs, outputs), folder / "one.onnx", dynamic=False)
    return onnx_file.load(folder / "one.onnx")(*inputs)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [1, MAX_CHUNK, MAX_CHUNK + 1, 9 * MAX_CHUNK + 2])
@pytest.mark.parametrize("state", [False, True], ids=["from zero", "from a state"])
def test_the_scan(length, state, tmp_path):
    x, delta, into, out_of = (draw(2, length, size, seed=size) for size in (5, 6, 3, 4))
    delta, into = delta[..., :5].abs(), torch.cat((into, into[..., :1]), -1)
    decay = -draw(5, 4).exp()
    given = (x, delta, into, out_of, *([draw(2, 5, 4)] if state else []))

    def scan(x, delta, into, out_of, begin=None):
        return traced_scan(x, delta, decay, into, out_of, begin)

    found = in_onnxruntime(scan, given, 2, tmp_path)
    wanted = selective_scan(x, delta, decay, into, out_of, None, given[4] if state else None)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("state", [False, True], ids=["from zero", "from a state"])
@pytest.mark.parametrize("rotating", [False, True])
def test_the_neurons(steps, state, rotating, tmp_path):
    """Spikes and states are the same to the last bit or nearly so: no threshold is met by chance here."""
    rotation = draw(4, seed=5) if rotating else None
    neuron = NeuronConstants(draw(4, seed=1).sigmoid(), rotation, draw(4, seed=2).exp(), draw(4, seed=3).sigmoid())
    begin = [draw(2, 4, 3, 5, seed=6 + part) for part in range(1 + rotating)] if state else []

    def fire(x, *before):
        held = (before[0], before[1] if rotating else None) if before else None
        (spikes, potential), (real, imag) = fire_over_time(x, neuron, initial_state=held, reset=0.3)
        return (spikes, potential, real, imag) if rotating else (spikes, potential, real)

    given = (2 * draw(2, steps, 4, 3, 5, seed=4), *begin)
    found, wanted = in_onnxruntime(fire, given, 3 + rotating, tmp_path), fire(*given)
    assert 0.05 < wanted[0].mean() < 0.95
    assert torch.equal(found[0], wanted[0])
    for one, other in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_softplus_at_every_size(tmp_path):
    x = torch.cat((torch.linspace(-30, 30, 401), torch.tensor([-1e4, -100.0, 100.0, 1e4, 0.0])))
    (found,) = in_onnxruntime(F.softplus, (x,), 1, tmp_path)
    torch.testing.assert_close(found, F.softplus(x.double()).float(), rtol=1e-6, atol=1e-7)
    (found,) = in_onnxruntime(lambda x: F.softplus(x, beta=2.0), (x,), 1, tmp_path)
    torch.testing.assert_close(found, F.softplus(x.double(), beta=2.0).float(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("size", "stride"), [((5, 6), 1), ((5, 6), 2), ((1, 1), 2)])
def test_the_convolution_in_integers(size, stride, tmp_path):
    """Bytes hold filtered spikes exactly, so that only float32's last digits differ."""
    spikes = (draw(1, 4, 3, *size) > 0).float()
    coefficient = torch.tensor([-63.0, 10.0, 63.0]) / FILTER_GRID
    values = (20 * draw(5, 3, 3, 3)).round().clamp(-127, 127).to(torch.int8)
    scale, bias = draw(5, 1, 1, 1).exp(), draw(5)
    filtered = tdm(spikes, coefficient)[0].flatten(0, 1)
    given = (filtered, values, scale, bias)
    (found,) = in_onnxruntime(lambda *inputs: integer_conv_node(*inputs, stride), given, 1, tmp_path)
    wanted = F.conv2d(filtered.double(), values.double() * scale.double(), bias.double(), stride, 1)
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-4)
    kinds = {node.op_type for node in onnx.load(tmp_path / "one.onnx").graph.node}
    assert "MatMulInteger" in kinds
    assert "Conv" not in kinds


def test_filters_that_bytes_cannot_hold():
    for coefficient, fits in ((0.25, True), (0.5, False), (0.001, False), (-63 / 128, True)):
        assert is_on_filter_grid(torch.tensor([0.0, coefficient])) == fits
    assert is_on_filter_grid(None)


@torch.no_grad()
def test_only_calibrated_networks_have_convolutions_in_integers(loud):
    model = fuse(loud(time_steps=2, mixer="none"), quiet=True)
    clips = synthetic_clip(2, 18, 18, samples=8)
    stored, _ = to_int8(model, clips)
    whole = [name for name in stored if name.endswith("coefficient")]
    assert len(whole) == 4  # not the first stage's
    assert all(is_on_filter_grid(restore(stored[name])) for name in whole)
    for weights, count in ((stored, 4), ({k: v for k, v in stored.items() if k not in whole}, 0), (None, 0)):
        with graph_nodes(*WRITTEN_NODES):
            program = trace_graph(make_graph("clip", model, 18, 18, weights), dynamic=False)
        nodes = [node for node in program.graph.nodes if str(node.target) == "ripe_graph.integer_conv.default"]
        assert len(nodes) == count


def test_operators_that_are_written_as_they_are(tmp_path):
    weight = draw(6, 4)

    def call(x):
        mixed = project(x, (weight,)).flatten(0, 1).unflatten(1, (2, 3)).flatten(2)
        return mixed, 2 - x.flatten(-1), ((x > 0) & (x < 1)).to(torch.int64)

    given = (draw(2, 3, 4, 5),)
    for one, other in zip(in_onnxruntime(call, given, 3, tmp_path), call(*given), strict=True):
        torch.testing.assert_close(one, other)


def test_only_programs_of_known_operators_are_not_decomposed():
    x = draw(2, 3, 4)
    for call, direct in ((lambda x: x.flatten(1) + 1, True), (lambda x: F.gelu(x), False)):
        with graph_nodes(*WRITTEN_NODES):
            program = trace_graph(graph_of(call, (x,), 1), dynamic=False)
        assert needs_no_decomposition(program) == direct


def test_nodes_are_kept_for_onnx_alone():
    decay = -draw(5, 4).exp()
    inputs = (draw(1, 9, 5), draw(1, 9, 5).abs(), draw(1, 9, 4), draw(1, 9, 4))

    def names(program):
        return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]

    graph = graph_of(lambda x, delta, b, c: traced_scan(x, delta, decay, b, c, None)[0], inputs, 1)
    assert not any("ripe" in name for name in names(trace_graph(graph, dynamic=False)))
    with graph_nodes(*WRITTEN_NODES):
        assert "ripe_graph.scan.default" in names(trace_graph(graph, dynamic=False))
