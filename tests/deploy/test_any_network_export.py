"""Networks other than RIPE-MambaSpike: exported as they are, or refused."""

import json

import pytest
import torch
from tests.raising import raises
from tests.toy_network import SMALL, TOY, Toy, make_small

from ripe_mambaspike import create_model, export, from_pretrained, list_models
from ripe_mambaspike.deploy.export.graph import make_graph
from ripe_mambaspike.deploy.export.manifest import MANIFEST
from ripe_mambaspike.deploy.export.registry import ExportOptions, export_format, export_formats
from ripe_mambaspike.deploy.export.run import CLIP, load_exported
from ripe_mambaspike.deploy.export.trace import trace_graph
from ripe_mambaspike.errors import ConfigError, InputError, VerificationError, WeightsError
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.ops.mamba_inner import traced_scan

STEPS, SIDE = 3, 18
OTHERS = [name for name in list_models() if model_config(name).architecture != "ripe-mambaspike"]
FAST = {"cnn-gru", "event-mlp"}
pytestmark = pytest.mark.usefixtures("toy")


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    """Fewer operations to translate."""
    monkeypatch.setattr(traced_scan, "CHUNK", 4)


@pytest.fixture(scope="module")
def clips():
    return synthetic_clip(STEPS, SIDE, SIDE, 4, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_the_onnx_file_gives_the_networks_logits_for_any_batch(name, clips, tmp_path):
    pytest.importorskip("onnxruntime")
    model = make_small(name)
    wanted = model.run(clips)
    assert all(0.01 < rate < 0.9 for rate in wanted.rates.tolist())  # so that equal logits mean something
    export(model, tmp_path / "out", to="onnx")
    run = load_exported(tmp_path / "out")
    assert (run.kinds, run.ways) == (("clip",), [CLIP])
    for batch in (1, 3, 4):
        torch.testing.assert_close(run(clips[:batch]), wanted.logits[:batch], rtol=1e-5, atol=1e-5)
    found = export_format("onnx").check(tmp_path / "out", model, clips)
    assert found[CLIP].labels == 4
    with raises(InputError, "clips", mentions=(SIDE, SIDE + 2)):
        run(synthetic_clip(STEPS, SIDE + 2, SIDE + 2))
    assert model.config.architecture in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in OTHERS])
def test_every_network_is_traced_for_any_batch(name):
    model = create_model(name, seed=0, time_steps=2, in_size=32, num_classes=4).eval()
    program = trace_graph(make_graph("clip", model, 32, 32))
    with torch.no_grad():
        for batch in (1, 3):
            assert program.module(check_guards=False)(synthetic_clip(2, 32, 32, batch)).shape[0] == batch


@pytest.mark.slow
@torch.no_grad()
def test_a_static_file_and_a_network_of_one_size(clips, tmp_path):
    pytest.importorskip("onnxruntime")
    model = make_small("mamba-spike-pooled", pool_size=None)
    export(model, tmp_path / "out", to="onnx", static=True)
    torch.testing.assert_close(load_exported(tmp_path / "out")(clips), model(clips), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_safetensors_hold_the_network(name, clips, tmp_path):
    model = make_small(name)
    found = export(model, tmp_path / "out", to="safetensors")
    assert found.files.keys() == {"config.json", "model.safetensors"}
    loaded = from_pretrained(tmp_path / "out")
    assert (loaded.name, loaded.config) == (name, model.config)
    assert torch.equal(loaded(clips), model(clips))


def test_what_is_refused(tmp_path):
    model = make_small(TOY)
    able = {"safetensors", "onnx"}
    for to in set(export_formats()) - able:
        with raises(ConfigError, "to", mentions=(TOY, *able, to)):
            export_format(to).check_network(model, ExportOptions("safetensors"))
    for weights in ("fp16", "int8"):
        with raises(ConfigError, "weights", mentions=(TOY, "fp32", weights)):
            export(model, tmp_path / "out", to="safetensors", weights=weights)
    with raises(ConfigError, "graphs", mentions=(TOY, "clip", "step")):
        export(model, tmp_path / "out", to="onnx", graphs=("clip", "step"))
    hooked = make_small(TOY)
    hooked.second.register_forward_hook(lambda *_: None)
    with raises(ConfigError, "second"):
        make_graph("clip", hooked, SIDE, SIDE)
    assert not list(tmp_path.iterdir())


class Noisy(Toy):
    def forward_features(self, x):
        return super().forward_features(x) + torch.rand(1, device=x.device)


class Counting(Toy):
    calls = 0

    def forward_features(self, x):
        self.calls += 1
        return super().forward_features(x) + self.calls


class Branching(Toy):
    def forward_features(self, x):
        return super().forward_features(x if x.sum() > 100 else -x)


@pytest.mark.parametrize(
    ("kind", "error"), [(Noisy, VerificationError), (Counting, VerificationError), (Branching, ConfigError)]
)
def test_what_cannot_be_traced_exactly(kind, error, monkeypatch):
    model = make_small(TOY)
    model.__class__ = kind
    monkeypatch.setattr(kind, "package_methods", {})
    with pytest.raises(error):
        trace_graph(make_graph("clip", model, SIDE, SIDE))


@pytest.mark.slow
def test_the_architecture_in_the_manifest(tmp_path):
    pytest.importorskip("onnxruntime")
    export(make_small("event-mlp"), tmp_path / "out", to="onnx", static=True)
    path = tmp_path / "out" / MANIFEST
    document = json.loads(path.read_text())
    assert document["architecture"] == "event-mlp"
    for wrong, field in (("no-such-net", "architecture"), ("mamba-spike", "config.channels")):
        path.write_text(json.dumps({**document, "architecture": wrong}))
        with raises(WeightsError, field, path):
            load_exported(tmp_path / "out")
