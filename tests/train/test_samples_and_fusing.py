"""After a run: test clips as samples, evaluation with shuffled time steps, and the fused network."""

import json
import shutil

import pytest
import torch

from raising import raises
from ripe_mambaspike import evaluate, from_pretrained
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.data.samples import held_out, sample_clips, spread_over_classes
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.inference.evaluate import shuffled_steps


@pytest.mark.parametrize(
    ("labels", "count", "wanted"),
    [
        ([0, 0, 1, 1, 2, 2], 3, [0, 2, 4]),
        ([0, 0, 1, 1, 2, 2], 2, [0, 2]),
        ([0, 0, 1, 1, 2, 2], 5, [0, 2, 4, 1, 3]),
        ([0, 0, 0, 1], 4, [0, 3, 1, 2]),
        ([4, 3, 2, 1], 1, [3]),
        ([0, 1], 9, [0, 1]),
    ],
)
def test_samples_are_of_as_many_classes_as_there_can_be(labels, count, wanted):
    assert spread_over_classes(labels, count) == wanted


def test_samples_are_test_clips(tiny):
    data = tiny().data
    clips, recordings = sample_clips(data, 3), held_out(data, 3)
    assert len({label for _, label, _ in clips}) == 3
    assert [name for _, _, name in clips] == [name for _, _, name in recordings]
    for (counts, _, name), (recording, label, _) in zip(clips, recordings, strict=True):
        assert name.startswith("test/")
        assert name.endswith(label)
        assert counts.shape == (4, 2, 16, 16)
        assert counts.sum() == len(recording)


def test_no_samples_without_the_data(tiny, tmp_path):
    assert sample_clips(tiny(f"data.root={tmp_path}").data) is None


def test_shuffled_clips_have_the_same_steps_in_another_order():
    x, y = torch.arange(6 * 5.0).view(6, 5, 1, 1, 1).expand(6, 5, 2, 3, 3), torch.arange(6)
    ((given, labels),) = shuffled_steps([(x, y)])
    assert torch.equal(labels, y)
    assert torch.equal(given.sort(1).values, x)
    assert len({tuple(row.tolist()) for row in given[:, :, 0, 0, 0] % 5}) > 1
    ((again, _),) = shuffled_steps([(x, y)])
    assert torch.equal(given, again)


def test_fused_network_is_saved_with_its_labels(finished, tmp_path, capsys):
    out = tmp_path / "fused"
    assert main(["fuse", str(finished), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    small = from_pretrained(out, form="deployed")
    assert printed["parameters"]["deployed"] == small.parameter_count() < printed["parameters"]["training"]
    assert (out / "labels.json").read_bytes() == (finished / "best" / "labels.json").read_bytes()
    x = torch.poisson(torch.full((2, 4, 2, 16, 16), 0.3))
    assert torch.equal(small(x), from_pretrained(finished / "best")(x))
    assert main(["fuse", str(out)]) == 2
    assert "form: expected training" in capsys.readouterr().err


def test_held_out_recordings_are_predicted(finished, capsys):
    assert main(["predict", str(finished), "--held-out", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["recordings"]
    assert len(rows) == 2
    assert all(row["file"].endswith(row["true"]) for row in rows)
    assert main(["predict", str(finished), "--held-out", "-1"]) == 2


def predictions(capsys, checkpoint):
    assert main(["predict", str(checkpoint), "--held-out", "2", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["recordings"]


@pytest.mark.parametrize(
    "words",
    [
        ("--to", "safetensors"),
        pytest.param(("--to", "onnx", "--static", "--graphs", "clip"), marks=pytest.mark.slow),
    ],
    ids=["safetensors", "onnx"],
)
def test_held_out_recordings_of_an_export(finished, capsys, tmp_path, words):
    """In its run's folder it finds the data; elsewhere it is refused in one line."""
    run = shutil.copytree(finished, tmp_path / "run")
    assert main(["export", str(run), *words]) == 0
    capsys.readouterr()
    expected, found = predictions(capsys, run), predictions(capsys, run / "export" / f"{words[1]}-fp32")
    assert [row["file"] for row in found] == [row["file"] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    if words[1] == "onnx":  # other commands say what it is
        for command in (["eval"], ["fuse"], ["stream", "--source", "-"]):
            assert main([command[0], str(run / "export" / "onnx-fp32"), *command[1:]]) == 2
            assert "export" in capsys.readouterr().err.replace(str(run / "export"), "")
    moved = shutil.move(run / "export" / f"{words[1]}-fp32", tmp_path / "moved")
    assert main(["predict", str(moved), "--held-out", "2"]) == 2
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    assert "--held-out" in printed
    assert str(moved) in printed


def test_evaluation_of_the_fused_network(finished):
    """The keyword of the option: the deployed form, with the scores of the training form."""
    found, fused = evaluate(finished), evaluate(finished, fused=True)
    assert (found.form, fused.form) == ("training", "deployed")
    assert (fused.scores.confusion == found.scores.confusion).all()
    with raises(InputError, field="fused"):
        evaluate(finished, fused=True, model=from_pretrained(finished / "best"))


def test_shuffled_evaluation_is_labelled(finished, capsys):
    assert main(["eval", str(finished), "--shuffle", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["shuffled"] is True
    assert printed["n"] == 11
