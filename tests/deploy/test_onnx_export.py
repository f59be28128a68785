"""ONNX files in onnxruntime: any batch and size, step and tail graphs, int8 weights, damaged files."""

import pytest
import torch
from tests.deploy.networks import as_int8
from tests.raising import raises

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.deploy.export.graph import Graph, make_graph
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.ops.mamba_inner.traced_scan import traced_scan

pytestmark = pytest.mark.slow

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
onnx_file = export_format("onnx")

STEPS = 2
SMALL = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": STEPS}


def apart(given, wanted):
    return float((given - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))


class Scanned(torch.nn.Module):
    """The scan over any number of tokens, the only part of the blocks that depends on the size."""

    size, facts = (18, 18), {}

    def forward(self, x, delta):
        decay = -torch.ones(3, 4).cumsum(-1)
        return traced_scan(x, delta.abs(), decay, *(torch.cat((x, x[..., :1]), -1),) * 2, None)[0]

    def example(self, batch, height, width):
        return torch.zeros(batch, height * width, 3), torch.zeros(batch, height * width, 3)


def test_the_scan_at_any_length_from_one_file(tmp_path):
    module = Scanned()
    dynamic = {"x": {0: "batch", 1: "tokens"}, "delta": {0: "batch", 1: "tokens"}}
    graph = Graph("step", module, module.example(1, 18, 18), ("x", "delta"), ("y",), dynamic, {})
    onnx_file.save(graph, tmp_path / "scan.onnx")
    run = onnx_file.load(tmp_path / "scan.onnx")
    for batch, length in ((1, 1), (2, 31), (1, 33), (3, 500), (1, 4096)):
        inputs = torch.randn(2, batch, length, 3, generator=torch.Generator().manual_seed(length))
        assert apart(run(*inputs)[0], module(*inputs)) <= 1e-5


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(a network, its graphs, their files): the step with dynamic sizes, the tail static."""
    model = create_model("nmnist", seed=0, **SMALL)
    randomize(model, 0)
    model = fuse(model, quiet=True)
    folder = tmp_path_factory.mktemp("onnx")
    graphs = {"step": make_graph("step", model, 18, 18), "tail": make_graph("tail", model, 18, 18)}
    files = {}
    for kind, graph in graphs.items():
        files[kind] = folder / f"{kind}.onnx"
        onnx_file.save(graph, files[kind], dynamic=kind == "step")
    return model, graphs, files


@torch.no_grad()
@pytest.mark.parametrize("feature_map", ["relu", "softplus", "exp"])
def test_the_paper_s_choices(tmp_path, feature_map):
    mixing = {"mixer": "flat-matched", "d_state": 6, "d_conv": 3} if feature_map == "exp" else {"mixer": "none"}
    fields = {"attention_feature_map": feature_map, "attention_epsilon": 0.1, "csilif_reset": 0.2, "bridge_dim": 13}
    model = create_model("nmnist", seed=0, **{**SMALL, "embed_dims": (4, 8, 8), **fields, **mixing})
    randomize(model, 0)
    model = fuse(model, quiet=True)
    onnx_file.save(make_graph("clip", model, 18, 18), tmp_path / "clip.onnx", dynamic=False)
    x = synthetic_clip(STEPS, 18, 18, seed=3)
    (logits,) = onnx_file.load(tmp_path / "clip.onnx")(x)
    assert apart(logits, model(x)) <= 1e-4


@torch.no_grad()
def test_one_file_serves_every_batch_and_size(tmp_path):
    """Without blocks, whose only part that depends on the size is the scan above: symbolic sizes are slow to trace."""
    model = create_model("nmnist", seed=0, **{**SMALL, "mixer": "none"})
    randomize(model, 0)
    model = fuse(model, quiet=True)
    onnx_file.save(make_graph("clip", model, 18, 18), tmp_path / "clip.onnx")
    run = onnx_file.load(tmp_path / "clip.onnx")
    for samples, height, width in ((1, 18, 18), (3, 34, 34), (2, 21, 26), (1, 8, 8), (2, 64, 48)):
        x = synthetic_clip(STEPS, height, width, samples, seed=3)
        (logits,) = run(x)
        assert apart(logits, model(x)) <= 1e-4


@torch.no_grad()
def test_steps_in_a_row_with_the_tail(made):
    model, graphs, files = made
    step, tail = onnx_file.load(files["step"]), onnx_file.load(files["tail"])
    x = synthetic_clip(STEPS, 18, 18, 1, seed=3)
    states = graphs["step"].example[2:]
    features, maps = [], []
    for index in range(STEPS):
        feature, attention, *states = step(x[:, index], torch.tensor(index), *states)
        features.append(feature)
        maps.append(attention)
    (logits,) = tail(torch.stack(features, 1), torch.stack(maps, 1))
    assert apart(logits, model(x)) <= 1e-4


def test_metadata_of_the_file(made):
    _, graphs, files = made
    model = onnx.load(files["step"])
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert facts["kind"] == "step"
    assert (facts["time_steps"], facts["num_classes"], facts["name"]) == (str(STEPS), "10", "nmnist")
    assert [value.name for value in model.graph.input] == list(graphs["step"].input_names)
    assert [value.name for value in model.graph.output] == list(graphs["step"].output_names)
    names = [dimension.dim_param for dimension in model.graph.input[0].type.tensor_type.shape.dim]
    assert names == ["batch", "", "height", "width"]
    assert {entry.domain for entry in model.opset_import} == {""}


@torch.no_grad()
def test_int8_weights_stay_int8_in_the_file(loud, tmp_path):
    model = fuse(loud(time_steps=1, mixer="none"), quiet=True)
    stored = {name: as_int8(weight) for name, weight in model.named_parameters() if weight.ndim > 1}
    graph = make_graph("clip", model, 18, 18, stored)
    onnx_file.save(graph, tmp_path / "small.onnx", dynamic=False)
    kept = dict.fromkeys((onnx.TensorProto.INT8, onnx.TensorProto.FLOAT), 0)
    for tensor in onnx.load(tmp_path / "small.onnx").graph.initializer:
        kept[tensor.data_type] = kept.get(tensor.data_type, 0) + len(tensor.raw_data)
    wanted = sum(one.values.numel() for one in stored.values())
    assert kept[onnx.TensorProto.INT8] >= 0.95 * wanted
    assert kept[onnx.TensorProto.FLOAT] < 0.5 * 4 * wanted
    x = synthetic_clip(1, 18, 18, 1, seed=3)
    assert apart(onnx_file.load(tmp_path / "small.onnx")(x)[0], graph.module(x)) <= 1e-4


def test_an_unknown_opset_is_refused_before_any_work(made, tmp_path):
    _, graphs, _ = made
    for opset in (17, 99, "20", True):
        with raises(ConfigError, "opset", mentions=("from 18 to 22", f"got {opset!r}")):
            onnx_file.save(graphs["tail"], tmp_path / "no.onnx", opset=opset)
    assert not list(tmp_path.iterdir())


def test_damaged_files(made, tmp_path):
    data = made[2]["tail"].read_bytes()
    place = tmp_path / "bad.onnx"
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]
    for damaged in (data[:middle], flipped, b"nothing of the kind", b""):
        place.write_bytes(damaged)
        with raises(InputError, path=place):
            onnx_file.load(place)
    with raises(InputError, path=tmp_path / "absent.onnx"):
        onnx_file.load(tmp_path / "absent.onnx")


def test_inputs_of_another_size_are_refused(made):
    path = made[2]["tail"]
    run = onnx_file.load(path)
    with raises(InputError, "inputs", path, ("expected 2: features, attention", "got 1")):
        run(torch.zeros(1))
    with raises(InputError, "inputs", path, "(1, 2, 4, 8), (1, 2, 16, 2, 2)"):
        run(torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 16, 2, 2))


def test_the_missing_package_is_named(monkeypatch):
    assert onnx_file.unavailable_reason() is None
    monkeypatch.setattr(type(onnx_file), "packages", ("no_such_package",))
    reason = onnx_file.unavailable_reason()
    assert "the package no_such_package" in reason
    assert 'pip install "ripe-mambaspike[export]"' in reason
