"""The card of an exported folder: what it says is so, its code runs, and no name becomes markup."""

import dataclasses
import json
import os
import re
from html import unescape

import numpy as np
import pytest
import torch
import yaml
from msgspec.structs import replace
from tests.raising import raises

from ripe_mambaspike import create_model, write
from ripe_mambaspike.deploy.export.card import CardFacts, card_text, result_of_network, safe, write_card
from ripe_mambaspike.deploy.export.graph import graph_kinds, make_graph
from ripe_mambaspike.deploy.export.parity import ParityResult
from ripe_mambaspike.deploy.export.registry import ExportOptions, export_format, export_formats
from ripe_mambaspike.deploy.export.tensors import graph_tensors
from ripe_mambaspike.deploy.export.write import write_export
from ripe_mambaspike.deploy.quantize.convert import (
    AccuracyChange,
    CalibrationReport,
    LayerError,
    apply_stored,
    to_float16,
)
from ripe_mambaspike.errors import ConfigError, InputError, WeightsError
from ripe_mambaspike.events import Recording, make_events
from ripe_mambaspike.inference.classifier import make_classifier, make_clip
from ripe_mambaspike.models.accuracy import TrainingResult
from ripe_mambaspike.models.labels import Labels, save_labels
from ripe_mambaspike.train.recipes import load_recipe, save_recipe

NASTY = ("hand_clapping", "a|b", "<script>alert(1)</script>", "[x](http://e.com)\n# Title")
LABELS = Labels(NASTY, "synthgesture", "people", 4, (16, 20), "time", False, 3, "validation")
DOCUMENT = {
    "format": "ripe-result", "version": 1, "name": "mine", "protocol": "validation", "picked_on": "val", "epoch": 3,
    "set": "synthgesture", "partition": "people", "top1": 0.875, "n": 40, "folds": None, "fold": None,
}  # fmt: skip
RESULT = TrainingResult(**{**DOCUMENT, "name": "my *recipe*"})


@pytest.fixture(scope="module")
def network():
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 6, "in_size": 16}
    return create_model("nmnist", seed=0, num_classes=4, form="deployed", **fields)


@pytest.fixture
def folder(network, tmp_path):
    """An exported folder with its card."""
    stored = to_float16(network)
    write_export(network, ExportOptions("safetensors", "fp16"), tmp_path / "out", LABELS, stored)
    write_card(tmp_path / "out", network, CardFacts(weights="fp16", labels=LABELS, result=RESULT))
    return tmp_path / "out"


def section(text, title):
    """The lines under a heading."""
    return re.split(r"^## ", text.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0].strip()


def code(text):
    """The one Python block of a text."""
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return block


def shown(text):
    """The text as a reader of the page sees it."""
    return unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text))


def test_the_front_matter_is_yaml_without_a_license(folder):
    text = (folder / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert "license" not in fields  # weights keep their own
    assert {"event-camera", "spiking-neural-network", "fp16"} <= set(fields["tags"])
    assert body.lstrip().startswith("# my \\*recipe\\* (RIPE-MambaSpike trained on synthgesture)\n")


def test_the_network_and_its_files_are_described(network, folder):
    text = (folder / "README.md").read_text()
    assert f"| parameters | {network.parameter_count():,} |" in text
    assert "| input | 4 time steps of 2 polarities, 16×20 pixels |" in text
    assert "| form | deployed |" in text
    assert "| network | nmnist |" in text
    size = (folder / "model.safetensors").stat().st_size
    assert f"| model.safetensors | {size:,} |" in section(text, "Files")
    assert "README" not in section(text, "Files")


def test_the_card_s_code_runs(folder, network, monkeypatch):
    block = code(section((folder / "README.md").read_text(), "Use"))
    monkeypatch.chdir(folder)
    names = {}
    exec(block, names)
    assert names["logits"].shape == (1, 4, 4)
    assert torch.equal(names["classes"], apply_stored(network, to_float16(network)).predict(names["clips"]))


def test_the_card_s_command_runs(folder, capsys, monkeypatch):
    from ripe_mambaspike.cli.main import main

    random = np.random.default_rng(0)
    x, y = random.integers(0, 24, (2, 500))
    recording = Recording(make_events(x, y, np.sort(random.integers(0, 90_000, 500)), x % 2), (24, 24))
    path = write(recording, folder.parent / "clip.npz")
    (block,) = re.findall(r"```bash\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    words = block.replace("RECORDING", str(path)).split()
    monkeypatch.chdir(folder)
    assert words[0] == "ripe"
    assert main([*words[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recordings"][0]["label"] in NASTY


@pytest.mark.parametrize(
    ("labels", "result", "title"),
    [
        (None, None, "RIPE-MambaSpike (nmnist)"),
        (LABELS, None, "RIPE-MambaSpike trained on synthgesture"),
        (LABELS, replace(RESULT, name="mine"), "mine (RIPE-MambaSpike trained on synthgesture)"),
        (LABELS, replace(RESULT, name="mine", set="folder"), "mine (RIPE-MambaSpike trained on own recordings)"),
        (LABELS, replace(RESULT, name="synthgesture"), "RIPE-MambaSpike trained on synthgesture"),
        (LABELS.with_classes(4, None), None, "RIPE-MambaSpike (nmnist)"),
    ],
    ids=["bare", "labels", "run", "folder", "same-name", "new-head"],
)
def test_the_title_says_what_it_was_trained_on(network, labels, result, title):
    text = card_text(network, CardFacts(labels=labels, result=result), {})
    assert re.findall(r"^# (.*)$", text.split("```")[0], re.MULTILINE) == [title]


@pytest.mark.parametrize("by", ["time", "count"])
@pytest.mark.parametrize("binary", [False, True], ids=["counts", "binary"])
@pytest.mark.parametrize(
    ("sensor", "crop", "grid"),
    [
        ((40, 36), None, (16, 20)),
        ((40, 36), (3, 5, 24, 26), (16, 20)),
        ((20, 16), None, (16, 20)),
        (None, None, (9, 31)),
    ],
    ids=["whole", "crop", "own-size", "unknown"],
)
def test_the_binning_of_the_card_is_that_of_the_package(network, by, binary, sensor, crop, grid):
    labels = dataclasses.replace(LABELS, by=by, binary=binary, sensor_size=sensor, crop=crop, grid=grid)
    names = {}
    exec(code(section(card_text(network, CardFacts(labels=labels), {}), "Input")), names)
    width, height = sensor or grid[::-1]
    assert names["SENSOR"] == (width, height)
    random = np.random.default_rng(1)
    x, y = random.integers(0, width, 3001), random.integers(0, height, 3001)
    t, p = random.integers(-5_000, 90_001, 3001), random.integers(0, 2, 3001)
    classifier = make_classifier(network, labels, labels.time_steps, labels.grid)
    wanted = make_clip(classifier, Recording(make_events(x, y, t, p), (width, height)))
    found = names["bin_events"](x, y, t, p)
    assert found.dtype == np.float32
    assert np.array_equal(found, wanted.numpy())
    assert found.max() == 1 if binary else found.max() > 1


@pytest.mark.parametrize("fields", [{}, {"causal": True}, {"num_tokens": 3}], ids=["plain", "causal", "tokens"])
def test_the_tensors_of_the_card_are_those_of_the_graphs(fields):
    small = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 3, "form": "deployed"}
    model = create_model("nmnist", seed=0, num_classes=4, **small, **fields).eval()
    kinds = graph_kinds(model.config)
    found = graph_tensors(model.config, kinds, 3, (16, 20), static=True)
    wanted = []
    for kind in kinds:
        graph = make_graph(kind, model, 16, 20)
        with torch.no_grad():
            outputs = graph.module(*graph.example)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for role, names, values in (
            ("input", graph.input_names, graph.example), ("output", graph.output_names, outputs)
        ):  # fmt: skip
            for name, value in zip(names, values, strict=True):
                wanted.append((kind, role, name, str(value.dtype).removeprefix("torch."), tuple(value.shape)))
    assert [(one.graph, one.role, one.name, one.dtype, one.shape) for one in found] == wanted
    text = section(
        card_text(model, CardFacts(to="onnx", labels=dataclasses.replace(LABELS, time_steps=3)), {}), "Tensors"
    )
    assert "| clip | input | x | float32 | B × 3 × 2 × 16 × 20 |" in text
    assert "| step | input | step | int64 | scalar |" in text
    assert "| step | input | stages.0.first\\_conv.input | float32 | B × 2 × 16 × 20 |" in text


@pytest.mark.parametrize(
    ("to", "graphs", "expected"),
    [("onnx", (), True), ("onnx", ("step", "tail"), False), ("torch-export", (), False), ("safetensors", (), False)],
)
def test_a_script_comes_with_a_clip_graph_in_onnx(network, to, graphs, expected):
    text = card_text(network, CardFacts(to=to, graphs=graphs, labels=LABELS), {})
    assert ("## Without this package" in text) == expected
    assert "bin_events" in section(text, "Input")
    assert text.count("def bin_events") == 1
    assert ("## Tensors" in text) == (to != "safetensors")


@pytest.mark.parametrize("to", ["onnx", "nir"])
def test_other_formats_are_loaded_by_other_functions(network, to):
    use = section(card_text(network, CardFacts(to=to, labels=LABELS), {}), "Use")
    assert "from_pretrained" not in use
    assert ("load_exported" in use) == (to == "onnx")
    assert ("nir.read" in use) == (to == "nir")


@pytest.mark.parametrize("to", export_formats())
def test_the_card_says_whether_loading_runs_code(network, to):
    """The formats that `load_exported` opens only with trust."""
    text = card_text(network, CardFacts(to=to, labels=LABELS), {})
    carries = export_format(to).carries_code is not None
    assert ("carries code" in section(text, "Loading this export")) == carries
    assert ("trust=True" in section(text, "Use"), "RECORDING --trust" in text) == (carries, carries)
    assert "--trust" in section(text, "Loading this export")


def test_class_names_are_escaped(folder):
    text = (folder / "README.md").read_text()
    rows = section(text, "Classes").splitlines()[2:]
    assert len(rows) == len(NASTY)
    for number, (row, name) in enumerate(zip(rows, NASTY, strict=True)):
        cells = re.split(r"(?<!\\)\|", row)
        assert len(cells) == 4
        assert shown(cells[1]).strip() == str(number)
        assert shown(cells[2]).strip() == " ".join(name.split())
    assert "<script" not in text
    assert "\n# Title" not in text
    assert "](" not in text.replace("\\](", "")
    assert "http://" not in text
    assert shown(section(text, "Training")).count("my *recipe*") == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1. first", "1\\. first"),
        ("- minus", "\\- minus"),
        ("1.25 mJ", "1.25 mJ"),
        ("www.e.com", "www\\.e.com"),
        ("a\u202eb\x00c", "a b c"),
        ("~~x~~ `y` $z$", "\\~\\~x\\~\\~ \\`y\\` \\$z\\$"),
        ("&lt;", "&amp;lt;"),
        ("x" * 500, "x" * 119 + "…"),
        ("\ud800", "?"),
    ],
    ids=["list", "dash", "number", "link", "controls", "marks", "entity", "long", "surrogate"],
)
def test_escaped_text(given, expected):
    assert safe(given) == expected


def test_accuracy_and_how_it_was_picked(network):
    texts = {
        picked: section(card_text(network, CardFacts(result=replace(RESULT, picked_on=picked)), {}), "Accuracy")
        for picked in ("val", "test", "last epoch")
    }
    assert all("87.50 % of 40 test clips (35 right)" in text for text in texts.values())
    assert "picked on a validation part" in texts["val"]
    assert "picked on the test part itself" in texts["test"]
    assert "nothing was picked" in texts["last epoch"]
    assert "Unknown" in section(card_text(network, CardFacts(), {}), "Accuracy")


def test_checks_costs_and_limits(network):
    facts = CardFacts(
        weights="int8",
        labels=LABELS,
        result=replace(RESULT, fold=2, folds=5),
        extra=("my set",),
        parity={
            "onnx, clip": ParityResult(100, 3.2e-6, 0, 0, 99, 0, 0, 0, 0),
            "onnx, step": ParityResult(100, float("nan"), 0, 0, 0, 0, 0, 0, 0),
        },
        accuracy=AccuracyChange(200, 190, 189, 198),
        calibration=CalibrationReport(32, "compensated", (LayerError("a_b", 0.01, 0.02),), {}),
        cost={"energy at 45 nm": "0.4 mJ"},
        limits=("attention is not expressed",),
    )
    text = card_text(network, facts, {})
    assert "onnx, clip beside PyTorch: largest relative difference 3.2e-06, 99 of 100 labels agree." in text
    assert "largest relative difference not finite" in text
    assert "int8 weights beside float32 on 200 held-out clips: 95.00 % → 94.50 % (-0.50 points)" in text
    assert "before its weights were made smaller" in text
    assert "calibrated on 32 clips; the layer that moves most, a\\_b, moves by 1.00 %" in text
    assert "fold 2 of 5 held out as the test part" in section(text, "Training")
    assert "Its recordings are simulated." in section(text, "Training")
    assert "my set were used too" in section(text, "Training")
    assert section(text, "Cost") == "- energy at 45 nm: 0.4 mJ"
    assert "- attention is not expressed" in section(text, "Limits")
    bare = card_text(network, CardFacts(), {})
    assert "## Cost" not in bare
    assert "## Checks" not in bare
    assert "The outputs have no names: 0 to 3." in bare


def test_only_200_classes_are_listed(network):
    many = Labels(tuple(f"c{n}" for n in range(205)), "x", None, 4, (16, 16), "time", False, 0, "validation")
    text = section(card_text(network, CardFacts(labels=many), {}), "Classes")
    assert "| 199 | c199 |" in text
    assert "c200" not in text
    assert "The other 5 are in labels.json." in text


@pytest.fixture
def run(network, tmp_path):
    """The folder of a run that has ended."""
    best = network.save_pretrained(tmp_path / "run" / "best")
    save_labels(LABELS, best)
    (tmp_path / "run" / "result.json").write_text(json.dumps(DOCUMENT))
    return tmp_path / "run"


def test_the_result_of_a_run_is_found(run, network, tmp_path):
    expected = TrainingResult(**DOCUMENT)
    assert result_of_network(run / "best") == (expected, ())
    assert result_of_network(network.save_pretrained(tmp_path / "alone")) == (None, ())
    (run / "result.json").write_text(json.dumps({**DOCUMENT, "folds": 5, "fold": 2}))
    assert result_of_network(run / "best") == (replace(expected, fold=2, folds=5), ())
    recipe = load_recipe("synthgesture")
    object.__setattr__(recipe.data, "extra", ("nmnist=somewhere/else",))
    save_recipe(recipe, run / "recipe.yaml")
    assert result_of_network(run / "best")[1] == ("nmnist",)


def test_the_result_of_another_epoch_is_not_shown(run):
    (run / "result.json").write_text(json.dumps({**DOCUMENT, "epoch": 9}))
    assert result_of_network(run / "best") == (None, ())


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", None),
        ("[]", None),
        (json.dumps({"name": "x"}), "format"),
        (json.dumps({key: value for key, value in DOCUMENT.items() if key != "set"}), "set"),
        (json.dumps({**DOCUMENT, "top1": 87.5}), "top1"),
        (json.dumps({**DOCUMENT, "n": 0}), "n"),
        (json.dumps({**DOCUMENT, "picked_on": "luck"}), "picked_on"),
        (json.dumps({**DOCUMENT, "top1": "NaN"}), "top1"),
    ],
    ids=["truncated", "list", "lacking", "no-set", "percent", "none", "luck", "nan"],
)
def test_a_damaged_result_is_refused(run, text, field):
    (run / "result.json").write_text(text)
    with raises(WeightsError, field=field, path=run / "result.json"):
        result_of_network(run / "best")


def test_cards_that_cannot_be_written(network, tmp_path):
    with raises(InputError, path=tmp_path / "absent" / "README.md"):
        write_card(tmp_path / "absent", network, CardFacts())
    with raises(ConfigError, "weights", mentions=("fp32, fp16, int8", "int4")):
        write_card(tmp_path, network, CardFacts(weights="int4"))
    assert list(tmp_path.iterdir()) == []


def test_a_huge_result_is_refused(run):
    os.truncate(run / "result.json", 1 << 42)
    with raises(WeightsError, path=run / "result.json"):
        result_of_network(run / "best")
