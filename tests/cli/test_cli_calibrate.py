"""`ripe calibrate`: the temperature of the validation clips, the threshold, and what keeps them."""

import csv
import json
import shutil

import pytest
import torch

from ripe_mambaspike import evaluate, load
from ripe_mambaspike.data.settings import read_data_settings
from ripe_mambaspike.data.training_data import open_data
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.writing import write
from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.models.labels import read_labels
from ripe_mambaspike.models.pretrained import from_pretrained


def asked(ripe, *words):
    result = ripe(*words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


@pytest.fixture(scope="module")
def calibrated(finished, tmp_path_factory):
    """A network in the run's folder, which knows the recipe; its threshold keeps half of the validation clips."""
    from ripe_mambaspike import calibrate

    out = tmp_path_factory.mktemp("run") / "run" / "calibrated"
    out.parent.mkdir()
    for name in ("recipe.yaml", "result.json"):
        shutil.copy(finished / name, out.parent)
    return calibrate(finished, out, keep=0.5, device="cpu")


@pytest.fixture(scope="module")
def recordings(finished, tmp_path_factory):
    """The validation clips as files."""
    data = open_data(read_data_settings(finished / "recipe.yaml"))
    folder = tmp_path_factory.mktemp("val")
    events = data.events("val")
    for number in range(len(events)):
        recording, _ = events[number]
        write(Recording(recording.events, recording.sensor_size), folder / f"{number:02d}.npz")
    return folder


def test_the_temperature_lowers_the_loss_and_changes_no_class(finished, calibrated):
    before, after = (evaluate(folder, split="val", device="cpu").scores for folder in (finished, calibrated.out))
    assert calibrated.factor != 1
    assert calibrated.before.nll == pytest.approx(before.loss, rel=1e-5)
    assert calibrated.after.nll == pytest.approx(after.loss, rel=1e-5)
    assert after.loss < before.loss
    assert (before.confusion == after.confusion).all()
    first, second = evaluate(finished, device="cpu").scores, evaluate(calibrated.out, device="cpu").scores
    assert (first.confusion == second.confusion).all()


def test_only_the_last_layer_is_divided(finished, calibrated):
    before, after = from_pretrained(finished), from_pretrained(calibrated.out)
    for (name, first), (_, second) in zip(before.state_dict().items(), after.state_dict().items(), strict=True):
        expected = first / calibrated.factor if name in ("head.weight", "head.bias") else first
        torch.testing.assert_close(second, expected, rtol=1e-6, atol=0)


def test_the_facts_are_saved(finished, calibrated, ripe, tmp_path):
    found = read_labels(calibrated.out).calibration
    assert found == calibrated.calibration
    assert (found.set, found.split, found.clips) == ("synthgesture", "val", 13)
    assert found.store == read_labels(finished / "best").store
    assert read_labels(finished / "best").calibration is None
    again = asked(ripe, "calibrate", calibrated.out, "--out", tmp_path / "again")
    assert again["factor"] == pytest.approx(1, abs=1e-3)  # it is calibrated already
    assert again["calibration"]["temperature"] == pytest.approx(found.temperature, rel=1e-3)
    assert again["calibration"]["unknown"] is None


def test_the_fused_network_keeps_it(calibrated, ripe, tmp_path):
    assert ripe("fuse", calibrated.out, "--out", tmp_path / "fused").code == 0
    assert load(tmp_path / "fused").unknown == calibrated.calibration.unknown


@pytest.mark.parametrize(
    "words", [("safetensors", "--weights", "fp16"), pytest.param(("onnx",), marks=pytest.mark.slow)]
)
def test_exports_keep_it(calibrated, ripe, recordings, words, tmp_path):
    assert ripe("export", calibrated.out, "--to", *words, "--out", tmp_path).code == 0
    assert read_labels(tmp_path).calibration == calibrated.calibration
    assert f"{calibrated.calibration.unknown.threshold:.6g}" in (tmp_path / "README.md").read_text()
    clip = recordings / "00.npz"
    assert predict(load(tmp_path), clip).score == pytest.approx(predict(load(calibrated.out), clip).score, abs=1e-3)


@pytest.mark.parametrize("score", ["probability", "energy"])
def test_the_deployed_form_and_both_scores(finished, ripe, score, tmp_path):
    assert ripe("fuse", finished, "--out", tmp_path / "run" / "fused").code == 0
    shutil.copy(finished / "recipe.yaml", tmp_path / "run")
    words = ("--out", tmp_path / "run" / "calibrated", "--keep", "0.8", "--score", score)
    done = asked(ripe, "calibrate", tmp_path / "run" / "fused", *words)
    assert done["form"] == "deployed"
    assert done["kept"] == pytest.approx(11 / 13)
    assert done["after"]["nll"] < done["before"]["nll"]


def test_predict_says_unknown(ripe, calibrated, recordings, tmp_path):
    """The validation clips themselves: those below the threshold, by their score, and no others."""
    found = asked(ripe, "predict", calibrated.out, recordings, "--csv", tmp_path / "out.csv")["recordings"]
    rule = calibrated.calibration.unknown
    assert rule.score == "probability"
    assert len(found) == 13
    assert all(one["score"] == pytest.approx(one["probability"], abs=1e-7) for one in found)
    assert [one["unknown"] for one in found] == [one["probability"] < rule.threshold for one in found]
    assert sum(not one["unknown"] for one in found) == round(13 * calibrated.kept) == 7
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["unknown"] for row in rows] == [str(one["unknown"]).lower() for one in found]
    assert [float(row["score"]) for row in rows] == [one["score"] for one in found]
    text = ripe("predict", calibrated.out, recordings).out
    assert text.count(": unknown, at best ") == 6


def test_a_network_without_a_threshold_answers_as_before(ripe, finished, recordings, tmp_path):
    path = recordings / "00.npz"
    (found,) = asked(ripe, "predict", finished, path, "--csv", tmp_path / "out.csv")["recordings"]
    assert (found["unknown"], found["score"]) == (False, None)
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "file,class,probability"
    assert not predict(load(finished), path).unknown


def test_what_is_printed(ripe, finished, tmp_path):
    result = ripe("calibrate", finished, "--out", tmp_path / "out", "--keep", "0.5")
    text = " ".join(result.out.split())
    assert result.code == 0
    assert result.err == ""
    for part in ("13 synthgesture (people) val clips", "temperature", "NLL", "ECE", "none of the 13", "unknown: "):
        assert part in text


def test_the_test_split_and_trained_clips_are_refused(refused, finished, tmp_path):
    out = ("--out", tmp_path / "out")
    refused(("calibrate", finished, *out, "--split", "test"), "--split", "val")
    refused(("calibrate", finished, *out, "--split", "train"), "split", "synthgesture")
    assert not (tmp_path / "out").exists()


def test_a_run_without_validation_needs_a_dataset(ripe, refused, finished, gestures, tmp_path):
    shutil.copytree(finished / "best", tmp_path / "run" / "best")
    text = (finished / "recipe.yaml").read_text()
    assert "validation: true" in text
    (tmp_path / "run" / "recipe.yaml").write_text(text.replace("validation: true", "validation: false", 1))
    shutil.copy(finished / "result.json", tmp_path / "run")
    out = ("--out", tmp_path / "out")
    refused(("calibrate", tmp_path / "run", *out), "split", "--dataset")
    refused(("calibrate", tmp_path / "run", *out, "--dataset", "synthgesture"), "split", "--dataset")
    assert not (tmp_path / "out").exists()
    shutil.copytree(gestures, tmp_path / "other")
    assert ripe("calibrate", tmp_path / "run", *out, "--root", tmp_path / "other").code == 0


def test_options_that_cannot_be_used(refused, finished, saved, tmp_path):
    out = ("--out", tmp_path / "out")
    for keep in ("0", "1.1", "-1", "nan"):
        refused(("calibrate", finished, *out, "--keep", keep), "--keep", "share")
    refused(("calibrate", finished, *out, "--score", "energy"), "--score", "keep")
    refused(("calibrate", finished, *out, "--score", "entropy"), "score")
    refused(("calibrate", finished, "--out", finished / "best"), "--out", finished / "best")
    refused(("calibrate", saved, *out), "labels.json")
    refused(("calibrate", tmp_path / "none", *out), tmp_path / "none")
    assert not (tmp_path / "out").exists()
