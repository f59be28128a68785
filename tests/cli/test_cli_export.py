"""`ripe export`: what it writes, what it says, and what it cannot use."""

import json
import shutil

import numpy as np
import pytest

from ripe_mambaspike.deploy.export.run import load_exported
from ripe_mambaspike.events.recording import EVENT, Recording
from ripe_mambaspike.events.writing import write
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.ops.mamba_inner import traced_scan

pytestmark = pytest.mark.slow


def asked(ripe, *words):
    result = ripe("export", *words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    """Fewer operations to translate."""
    monkeypatch.setattr(traced_scan, "CHUNK", 4)


@pytest.fixture
def recordings(tmp_path):
    """Eight small ones of the run's sensor."""
    return make_recordings(tmp_path, (16, 16))


def make_recordings(folder, size):
    made = []
    for number in range(8):
        rng = np.random.default_rng(number)
        events = np.zeros(400, EVENT)
        events["x"], events["y"] = rng.integers(0, size[0], 400), rng.integers(0, size[1], 400)
        events["t"], events["p"] = np.sort(rng.integers(0, 90_000, 400)), rng.integers(0, 2, 400)
        made.append(folder / f"{number}.npz")
        write(Recording(events, size), made[-1])
    return made


def test_int8_on_the_runs_own_recordings(ripe, finished, tmp_path):
    found = asked(ripe, finished, "--to", "safetensors", "--weights", "int8", "--check", "--out", tmp_path / "out")
    assert found["calibration"]["on"] == "22 of the 22 train recordings of synthgesture"
    assert found["check"]["on"] == "37 of the 37 test recordings of synthgesture"
    parity = found["check"]["ways"]["network"]
    assert (parity["clips"], parity["labels"], parity["difference"], parity["agrees"]) == (37, 37, 0.0, True)
    result = json.loads((finished / "result.json").read_text())
    assert found["accuracy"]["fp32_top1"] == result["top1"]
    assert found["accuracy"]["n"] == 37
    assert found["files"].keys() == {"config.json", "labels.json", "model.safetensors"}
    model = from_pretrained(tmp_path / "out")
    assert model.config.form == "deployed"
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{100 * result['top1']:.2f} % of 37 test clips" in card
    assert "left\\_hand\\_wave" in card
    assert "GFLOP" in card


def test_onnx_and_its_text_output(ripe, finished, recordings, tmp_path):
    out = tmp_path / "out"
    result = ripe("export", finished, "--to", "onnx", "--static", "--check", "--recordings", *recordings, "--out", out)
    assert result.code == 0, result.err
    for words in ("onnx, fp32 weights; bytes: clip.onnx", "beside PyTorch on 8 recordings given", "clip graph"):
        assert words in result.out
    assert "step and tail graphs" in result.out
    assert "8 of 8" in result.out
    assert load_exported(out).kinds == ("clip", "step", "tail")
    assert "onnx, clip graph beside PyTorch: largest relative difference" in (out / "README.md").read_text()
    predicted = json.loads(ripe("predict", out, *recordings[:2], "--json").out)["recordings"]
    expected = json.loads(ripe("predict", finished, *recordings[:2], "--json").out)["recordings"]
    for given, wanted in zip(predicted, expected, strict=True):
        assert given["label"] == wanted["label"]
        assert given["probability"] == pytest.approx(wanted["probability"], abs=1e-4)


def test_nir_and_what_it_does_not_express(ripe, finished, recordings, tmp_path):
    words = ("--to", "nir", "--check", "--recordings", *recordings[:2], "--out", tmp_path / "out")
    found = asked(ripe, finished, *words)
    assert found["check"]["ways"]["front-end"]["differing"] == 0
    assert any("attention" in sentence for sentence in found["not_expressed"])
    result = ripe("export", finished, *words)
    assert "0 of" in result.out
    card = (tmp_path / "out" / "README.md").read_text()
    for sentence in found["not_expressed"]:
        assert sentence in result.out
        assert sentence in card.replace("\\", "")


def test_the_default_folder_is_beside_the_network(ripe, finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    found = asked(ripe, run, "--to", "safetensors", "--weights", "fp16")
    assert found["folder"] == str(run / "export" / "safetensors-fp16")
    assert (run / "export" / "safetensors-fp16" / "model.safetensors").is_file()
    assert asked(ripe, run, "--to", "safetensors", "--weights", "fp16")["folder"] == found["folder"]


def test_a_network_without_a_run(ripe, refused, saved, tmp_path):
    recordings = make_recordings(tmp_path, (20, 18))
    found = asked(ripe, saved, "--to", "safetensors", "--weights", "fp16", "--out", tmp_path / "out")
    assert "accuracy" not in found
    assert str(saved) in found["accuracy_unknown"]
    assert "trained on" in found["accuracy_unknown"]
    result = ripe("export", saved, "--to", "safetensors", "--weights", "fp16")
    assert "not measured" in result.out
    assert (saved.parent / "net-export" / "safetensors-fp16" / "model.safetensors").is_file()
    named = ["trained on", "recordings"]
    refused(["export", saved, "--to", "safetensors", "--check", "--out", tmp_path / "a"], *named)
    named = ["trained on", "calibration"]
    refused(["export", saved, "--to", "safetensors", "--weights", "int8", "--out", tmp_path / "a"], *named)
    words = ["--weights", "int8", "--calibration", *recordings, "--check", "--recordings", *recordings[:3]]
    found = asked(ripe, saved, "--to", "safetensors", *words, "--out", tmp_path / "small")
    assert found["check"]["ways"]["network"]["labels"] == 3


# What is refused


def test_too_few_recordings_to_calibrate_on(refused, finished, recordings, tmp_path):
    words = ["export", finished, "--to", "safetensors", "--weights", "int8", "--out", tmp_path / "out"]
    refused([*words, "--calibration", *recordings[:3]], "8")
    assert not (tmp_path / "out").exists()


def test_recordings_that_do_not_fit(refused, finished, recordings, tmp_path):
    events = np.zeros(400, EVENT)
    events["t"], events["p"] = np.arange(400), 1
    write(Recording(events, (16, 16)), tmp_path / "bright.npz")
    write(Recording(np.array([(1, 1, 5, 0), (2, 2, 9, 1)], EVENT), (9, 9)), tmp_path / "tiny.npz")
    words = ["export", finished, "--to", "safetensors", "--check", "--out", tmp_path / "out", "--recordings"]
    refused([*words, tmp_path / "bright.npz"], "bright.npz", "400", "polarit")
    refused([*words, tmp_path / "tiny.npz"], "tiny.npz", "sensor_size: ", "16×16", "9×9")
    refused([*words, tmp_path / "none.npz"], "none.npz")
    assert not (tmp_path / "out").exists()


def test_invalid_options_are_refused(refused, finished, gestures, tmp_path):
    words = ["export", finished, "--out", tmp_path / "out"]
    refused(["export", tmp_path / "gone", "--to", "onnx"], "gone")
    refused([*words, "--to", "onnx", "--opset", "3"], "opset", "3")
    refused([*words, "--to", "torch-export", "--opset", "18"], "opset", "18")
    refused([*words, "--to", "keras"], "keras", "onnx")
    refused([*words, "--to", "nir", "--weights", "int8"], "int8", "fp32")
    refused([*words, "--to", "safetensors", "--clips", "0"], "clips", "0")
    refused([*words, "--to", "safetensors", "--recordings", "a.npz"], "recordings", "check")
    refused([*words, "--to", "onnx", "--calibration", "a.npz"], "calibration", "fp32")
    refused([*words, "--to", "onnx", "--graphs", "clip", "step", "--check"], "graphs", "clip", "step", "tail")
    refused([*words, "--to", "safetensors", "--check", "--root", tmp_path], tmp_path, "synthgesture")
    assert not (tmp_path / "out").exists()
    refused(["export", finished, "--to", "safetensors", "--out", gestures], gestures)


def test_a_damaged_export_is_refused(refused, ripe, finished, recordings, tmp_path):
    asked(ripe, finished, "--to", "torch-export", "--static", "--graphs", "step", "--out", tmp_path / "out")
    path = tmp_path / "out" / "step.pt2"
    path.write_bytes(path.read_bytes()[:-100])
    refused(["predict", tmp_path / "out", recordings[0]], path, "sha256")
