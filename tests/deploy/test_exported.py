"""Exports on disk: what is written, what is read back, and what is refused."""

import json
import shutil

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike.deploy.export.manifest import MANIFEST, config_of, read_manifest
from ripe_mambaspike.deploy.export.parity import MAX_DIFFERENCE, ParityResult, compare_outputs, require_parity
from ripe_mambaspike.deploy.export.registry import ExportOptions, export_format
from ripe_mambaspike.deploy.export.run import CLIP, STEPS, load_export, load_exported
from ripe_mambaspike.deploy.export.write import to_deployed, write_export
from ripe_mambaspike.deploy.fuse.convert import dual_kernel, fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.deploy.quantize.convert import apply_stored, to_float16
from ripe_mambaspike.errors import ConfigError, InputError, VerificationError, WeightsError
from ripe_mambaspike.models.labels import Labels
from ripe_mambaspike.models.old_names import ADDED_FIELDS
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.models.registry import create_model
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.ops.mamba_inner import traced_scan

pytestmark = pytest.mark.slow

STEPS_, SIDE = 3, 16
NAMES = ("clockwise", "wave", "a <b> | c")
LABELS = Labels(NAMES, "mine", None, STEPS_, (SIDE, SIDE), "count", False, 1, "validation")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    small = {"stage_channels": [4, 8, 8], "embed_dims": [4, 8, 8], "in_size": [SIDE, SIDE]}
    made = create_model("nmnist", time_steps=STEPS_, num_classes=len(NAMES), **small)
    randomize(made, 0)
    return fuse(made.eval(), quiet=True)


@pytest.fixture(scope="module")
def clips():
    return synthetic_clip(STEPS_, SIDE, SIDE, 5, 0)


@pytest.fixture(scope="module", autouse=True)
def short_chunks():
    """Fewer operations to translate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced_scan, "CHUNK", 4)
        yield


@pytest.fixture(scope="module")
def onnx(model, tmp_path_factory):
    """Static: dynamic graphs are slow to trace, and tested with their format."""
    return write_export(model, ExportOptions("onnx", static=True), tmp_path_factory.mktemp("made") / "onnx", LABELS)


@pytest.fixture
def copied(onnx, tmp_path):
    return shutil.copytree(onnx, tmp_path / "copied")


def test_every_graph_agrees_with_pytorch(onnx, model, clips):
    found = export_format("onnx").check(onnx, model, clips)
    assert list(found) == [CLIP, STEPS]
    for parity in found.values():
        assert (parity.clips, parity.labels) == (5, 5)
        assert parity.difference <= MAX_DIFFERENCE
        assert parity.beyond == 0
        assert min(parity.load_seconds, parity.first_seconds, parity.latency_ms, parity.torch_ms) > 0


def test_the_manifest_describes_the_export(onnx, model):
    assert sorted(path.name for path in onnx.iterdir()) == [
        "clip.onnx", MANIFEST, "labels.json", "step.onnx", "tail.onnx",
    ]  # fmt: skip
    manifest = load_exported(onnx).manifest
    assert (manifest.to, manifest.weights, manifest.time_steps, manifest.grid) == ("onnx", "fp32", STEPS_, (SIDE, SIDE))
    assert [graph.kind for graph in manifest.graphs] == ["clip", "step", "tail"]
    assert manifest.config == model.config.to_dict()
    assert manifest.graphs[0].bytes == (onnx / "clip.onnx").stat().st_size


def test_clips_of_any_number(onnx, model, clips):
    """Also where the graph takes one at a time."""
    run = load_exported(onnx)
    assert run.manifest.static
    with torch.no_grad():
        expected = model(clips)
    assert torch.allclose(run(clips), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    assert torch.allclose(run.by_steps(clips), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_a_classifier_of_an_export(onnx, clips, model):
    classifier = load_export(onnx)
    assert (classifier.class_names, classifier.time_steps, classifier.grid) == (NAMES, STEPS_, (SIDE, SIDE))
    assert (classifier.bin_by, classifier.binary) == ("count", False)
    assert load_export(onnx, grid=SIDE).grid == (SIDE, SIDE)
    with raises(InputError, "grid", mentions=("16×16", "got 24", str(onnx))):
        load_export(onnx, grid=24)
    with raises(InputError, "time_steps", mentions=("expected 3", "got 2", str(onnx))):
        load_export(onnx, time_steps=2)


def test_an_export_replaces_an_earlier_one(model, tmp_path):
    out = write_export(model, ExportOptions("onnx", graphs=("step",), static=True), tmp_path / "deep" / "out", LABELS)
    write_export(model, ExportOptions("safetensors"), out, LABELS)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "labels.json", "model.safetensors"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_failed_check_leaves_nothing(model, tmp_path):
    def refuse(folder):
        assert (folder / "model.safetensors").exists()
        raise VerificationError("it does not agree")

    with pytest.raises(VerificationError):
        write_export(model, ExportOptions("safetensors"), tmp_path / "out", LABELS, finish=refuse)
    assert list(tmp_path.iterdir()) == []
    kept = write_export(
        model, ExportOptions("safetensors"), tmp_path / "out", None, finish=lambda made: write(made / "README.md")
    )
    with pytest.raises(VerificationError):
        write_export(model, ExportOptions("safetensors"), kept, LABELS, finish=refuse)
    assert sorted(path.name for path in kept.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def write(path):
    path.write_text("a card")


def test_other_folders_are_not_replaced(model, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for more in ("labels.json", MANIFEST):
        with raises(InputError, "out", tmp_path):
            write_export(model, ExportOptions("safetensors"), tmp_path, LABELS)
        (tmp_path / more).write_text("{}")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    with raises(InputError, "out", tmp_path / ("x" * 300)):
        write_export(model, ExportOptions("safetensors"), tmp_path / ("x" * 300), LABELS)


def test_an_export_with_other_files_is_not_replaced(copied, model):
    (copied / "notes.txt").write_text("mine")
    with raises(InputError, "out", copied):
        write_export(model, ExportOptions("safetensors"), copied, LABELS)
    assert (copied / "notes.txt").read_text() == "mine"


def test_without_a_clip_graph_step_and_tail_are_run(onnx, copied, clips):
    document = json.loads((copied / MANIFEST).read_text())
    document["graphs"] = [graph for graph in document["graphs"] if graph["kind"] != "clip"]
    (copied / MANIFEST).write_text(json.dumps(document))
    assert torch.equal(load_exported(copied)(clips[:1]), load_exported(onnx).by_steps(clips[:1]))


@pytest.mark.parametrize(
    ("field", "value"), [("neurons", ["alif", "silif", "alif"]), ("attention", "mine"), ("mixer", "average")]
)
def test_a_clip_graph_runs_without_the_file_that_registers_a_layer(onnx, copied, clips, field, value):
    """The graph holds the layer; the states of a step graph are those of the network, which cannot be built."""
    document = json.loads((copied / MANIFEST).read_text())
    document["config"][field] = value
    (copied / MANIFEST).write_text(json.dumps(document))
    exported = load_exported(copied)
    assert torch.equal(exported(clips), load_exported(onnx)(clips))
    with raises(ConfigError, field, mentions="RIPE_IMPORT"):
        exported.by_steps(clips)
    for wrong in (3, [3, "silif", "silif"], None):
        document["config"][field] = wrong
        (copied / MANIFEST).write_text(json.dumps(document))
        with raises(WeightsError, "config", copied / MANIFEST):
            load_exported(copied)


def test_a_folder_round_trip_with_small_weights(model, clips, tmp_path):
    stored = to_float16(model)
    out = write_export(model, ExportOptions("safetensors", "fp16"), tmp_path / "out", LABELS, stored)
    again = from_pretrained(out)
    expected = apply_stored(model, stored)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert export_format("safetensors").check(out, expected, clips)["network"].difference == 0


def test_a_nir_export_is_checked_and_cannot_be_run(model, clips, tmp_path):
    out = write_export(model, ExportOptions("nir"), tmp_path / "out", LABELS)
    found = export_format("nir").check(out, model, clips[:2])["front-end"]
    assert (found.clips, found.differing) == (2, 0)
    assert found.spikes > 100
    assert 0.5 < found.by_graph_alone < 1
    with raises(InputError, "to", out / MANIFEST, "got nir"):
        load_exported(out)


# What is refused


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_export(copied, damage):
    path = copied / "step.onnx"
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-9] if damage == "cut" else data[:99] + bytes([data[99] ^ 1]) + data[100:])
    with raises(WeightsError, field=None if damage == "gone" else "sha256", path=path):
        load_exported(copied)


def test_a_manifest_from_before_a_config_field(copied, clips):
    path = copied / MANIFEST
    document = json.loads(path.read_text())
    before = load_exported(copied)(clips[:1])
    for name in ADDED_FIELDS["ripe-mambaspike"]:
        del document["config"][name]
    path.write_text(json.dumps(document))
    assert config_of(read_manifest(copied), copied).d_state == 16
    assert torch.equal(load_exported(copied)(clips[:1]), before)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", None),
        ("[]", None),
        ('{"format": "ripe-export", "version": 7}', "version"),
        ('{"format": "ripe-export", "version": 1}', "version"),
        ('{"format": "ripe-export", "version": 2}', "to"),
    ],
)
def test_a_damaged_manifest(copied, text, field):
    (copied / MANIFEST).write_text(text)
    with raises(WeightsError, path=copied / MANIFEST) as error:
        load_exported(copied)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("member", "value", "field"),
    [
        ("grid", ["a", 3], "grid[0]"),
        ("time_steps", "abc", "time_steps"),
        ("time_steps", 0, "time_steps"),
        ("config", [1], "config"),
        ("config", {}, "config.num_classes"),
        ("static", 1, "static"),
        ("network", 3, "network"),
    ],
    ids=["grid", "steps", "none", "list", "empty", "flag", "name"],
)
def test_a_manifest_with_a_value_of_another_kind(copied, member, value, field):
    document = json.loads((copied / MANIFEST).read_text())
    (copied / MANIFEST).write_text(json.dumps({**document, member: value}))
    with raises(WeightsError, field, copied / MANIFEST):
        load_exported(copied)


def test_a_manifest_that_points_elsewhere(copied):
    document = json.loads((copied / MANIFEST).read_text())
    document["graphs"][0]["file"] = "../../secret"
    (copied / MANIFEST).write_text(json.dumps(document))
    with raises(WeightsError, "graphs[0].file"):
        load_exported(copied)


def test_clips_that_do_not_fit(onnx):
    run = load_exported(onnx)
    for shape in ((1, 2, 2, 16, 16), (1, 3, 1, 16, 16), (3, 2, 16, 16), (1, 3, 2, 18, 16)):
        x = torch.zeros(shape)
        with raises(InputError, "clips", mentions=("torch.float32 (B, 3, 2, 16, 16)", str(shape))):
            run(x)
    with raises(InputError, "clips", mentions="float64"):
        run(torch.zeros(1, 3, 2, 16, 16, dtype=torch.float64))


def test_a_missing_graph_is_named(model, clips, tmp_path):
    out = write_export(model, ExportOptions("onnx", graphs=("step",), static=True), tmp_path / "out", None)
    with raises(InputError, "graphs", out, "--graphs clip"):
        load_exported(out)(clips)


@pytest.mark.parametrize(
    ("fields", "field", "mentions"),
    [
        ({"to": "flax"}, "to", ("'flax'", "aoti, executorch, nir, onnx, safetensors, torch-export")),
        ({"to": "onnx", "graphs": ("whole",)}, "graphs", ("clip, step, tail", "whole")),
        ({"to": "aoti", "static": True, "opset": 20}, "opset", ("--to aoti", "20")),
        ({"to": "nir", "weights": "int8"}, "weights", ("fp32 with --to nir", "int8")),
        ({"to": "onnx", "opset": 9}, "opset", ("from 18 to 22", "got 9")),
        ({"to": "aoti"}, "static", ("--static", "--to aoti")),
        ({"to": "executorch"}, "static", ("--static", "--to executorch")),
        ({"to": "nir", "static": True}, "static", "--to nir"),
        ({"to": "safetensors", "graphs": ("clip",)}, "graphs", ("--to safetensors", "clip")),
    ],
    ids=str,
)
def test_options_that_a_format_does_not_have(fields, field, mentions):
    with raises(ConfigError, field, mentions=mentions):
        ExportOptions(**fields)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(type(export_format("onnx")), "unavailable_reason", lambda self: "not installed")
    with raises(ConfigError, "to", mentions="not installed"):
        ExportOptions("onnx")


def test_the_form_that_is_exported(model):
    other = create_model("mamba-spike-nmnist")
    assert to_deployed(other) is other  # it has nothing to fuse
    with raises(ConfigError, "form", mentions="dual-kernel"):
        to_deployed(dual_kernel(model, quiet=True))


# The comparison itself


def test_parity_counts_what_differs():
    logits = torch.tensor([[[1.0, 3.0]], [[2.0, 1.0]], [[4.0, 0.0]]])
    moved = torch.tensor([[[1.0, 3.0]], [[2.0, 1.001]], [[0.0, 4.0]]])
    numbers = torch.arange(3.0)[:, None]
    found = compare_outputs(lambda: lambda x: moved[x[:, 0].long()], lambda x: logits[x[:, 0].long()], numbers)
    assert (found.clips, found.labels, found.beyond) == (3, 2, 2)
    assert found.difference == 1.0
    assert found.median == pytest.approx(5e-4, rel=1e-3)
    assert not found.agrees


def test_nan_logits_never_agree():
    found = compare_outputs(
        lambda: lambda x: torch.full((1, 1, 2), torch.nan), lambda x: torch.ones(1, 1, 2), torch.ones(2, 1)
    )
    assert found.difference == float("inf")
    assert not found.agrees
    assert not ParityResult(3, float("inf"), 0.0, 1, 3, 0, 0, 0, 0).agrees


def test_a_disagreement_raises():
    with pytest.raises(VerificationError) as error:
        require_parity(ParityResult(10, 0.5, 2e-3, 10, 9, 0, 0, 0, 0), "the clip graph in onnx")
    assert all(word in str(error.value) for word in ("the clip graph in onnx", "9 of 10", "2.0e-03", "1e-04"))


# Causal networks


def test_a_causal_network_runs_by_clip_and_by_step(tmp_path):
    """Its step graph has all states and gives the step's logits; there is no tail."""
    small = {"stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "in_size": SIDE, "time_steps": 2, "causal": True}
    network = create_model("nmnist", seed=0, num_classes=3, **small)
    randomize(network, 0)
    network = fuse(network.eval(), quiet=True)
    out = write_export(network, ExportOptions("torch-export", static=True), tmp_path / "out", None)
    exported, x = load_exported(out), synthetic_clip(2, SIDE, SIDE, 2, seed=3)
    assert exported.kinds == ("clip", "step")
    with torch.no_grad():
        expected = network(x)
    for logits in (exported(x), exported.by_steps(x)):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    with raises(ConfigError, field="graphs"):
        write_export(network, ExportOptions("torch-export", static=True, graphs=("tail",)), tmp_path / "no", None)
