"""`ripe eval`: the reported number again, in both forms, and what it cannot use."""

import json
import shutil

import numpy as np
import pytest
import torch

from ripe_mambaspike.cli.eval import show_evaluation
from ripe_mambaspike.models.labels import read_labels, save_labels
from ripe_mambaspike.models.pretrained import from_pretrained


@pytest.fixture(scope="module")
def result(finished):
    return json.loads((finished / "result.json").read_text())


def asked(ripe, *words):
    result = ripe("eval", *words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


SAME = ("set", "partition", "split", "top1", "top5", "n", "per_class", "confusion")


def test_eval_gives_the_accuracy_of_the_result(ripe, finished, result):
    found = asked(ripe, finished)
    assert result["n"] == 37  # more than one batch, the last one not full
    assert {name: found[name] for name in (*SAME, "loss", "rates")} == {
        name: result[name] for name in (*SAME, "loss", "rates")
    }
    assert found["form"] == "training"


def test_the_fused_form_gives_the_same_accuracy(ripe, finished, result):
    found = asked(ripe, finished, "--fused")
    assert found["form"] == "deployed"
    assert {name: found[name] for name in SAME} == {name: result[name] for name in SAME}
    assert found["loss"] == pytest.approx(result["loss"], rel=1e-4)
    assert found["rates"] == pytest.approx(result["rates"], rel=1e-3)


def test_predictions_are_not_all_the_same_class(result):
    """So that equal confusions mean something."""
    assert len(np.flatnonzero(np.array(result["confusion"]).sum(0))) > 1


def test_eval_on_validation_clips_gives_the_logged_accuracy(ripe, finished, result):
    found = asked(ripe, finished, "--split", "val")
    lines = (finished / "log.csv").read_text().splitlines()
    row = dict(zip(lines[0].split(","), lines[result["epoch"]].split(","), strict=True))
    assert found["n"] == 13
    assert f"{found['top1']:.6g}" == row["val_top1"]
    assert f"{found['loss']:.6g}" == row["val_loss"]
    assert asked(ripe, finished, "--split", "train")["n"] == 22


def test_eval_of_a_network_folder(ripe, finished, result, gestures, tmp_path):
    """best/ in its run finds the recipe; copied elsewhere it needs to be told where the clips are."""
    assert asked(ripe, finished / "best")["confusion"] == result["confusion"]
    shutil.copytree(finished / "best", tmp_path / "net")
    found = asked(ripe, tmp_path / "net", "--root", gestures)
    assert {name: found[name] for name in SAME} == {name: result[name] for name in SAME}


def test_logits_that_are_not_finite_are_refused(refused, finished, gestures, tmp_path):
    """The weights are finite, the sums over them are not: every clip would count as the first class."""
    model = from_pretrained(finished / "best")
    with torch.no_grad():
        model.head.weight.fill_(3e38)
        model.head.bias.fill_(3e38)
    model.save_pretrained(tmp_path / "net")
    refused(("eval", tmp_path / "net", "--root", gestures), "logits")


def test_a_cut_of_the_same_set(ripe, finished, result):
    assert asked(ripe, finished, "--partition", "people")["confusion"] == result["confusion"]


def test_what_is_printed(ripe, finished, result):
    printed = ripe("eval", finished)
    text = " ".join(printed.out.split())
    assert printed.code == 0
    assert printed.err == ""
    assert f"top-1 {100 * result['top1']:.2f} %, top-5 {100 * result['top5']:.2f} % of 37" in text
    assert "synthgesture (people) test clips, training form" in text
    assert all(row["name"][:10] in text for row in result["per_class"])
    assert "firing rates" in text


def test_a_dataset_with_other_classes_is_refused(refused, finished, tmp_path):
    """Two more classes than the network tells apart; then the same number in another order."""
    shutil.copytree(finished / "best", tmp_path / "net")
    labels = read_labels(tmp_path / "net")
    changed = [
        type(labels)(**{**vars(labels), "classes": classes})
        for classes in ((*labels.classes[:-1], "sneeze"), labels.classes[::-1])
    ]
    recipe = finished / "recipe.yaml"
    shutil.copy(recipe, tmp_path / "recipe.yaml")
    for one in changed:
        save_labels(one, tmp_path / "net")
        refused(["eval", tmp_path / "net"], tmp_path / "net", "11", "synthgesture")


def test_another_dataset(refused, finished, gestures, tmp_path):
    refused(["eval", finished, "--dataset", "nmnist", "--root", tmp_path], tmp_path, "nmnist")
    refused(["eval", finished, "--dataset", "nmnis"], "nmnis")
    refused(["eval", finished, "--root", tmp_path], tmp_path, "synthgesture")
    refused(["eval", finished, "--partition", "sideways", "--root", gestures], "sideways")
    refused(["eval", finished, "--split", "all"], "--split", "all")


def test_folders_without_a_network_are_refused(refused, finished, tmp_path):
    refused(["eval", tmp_path / "none"], tmp_path / "none")
    refused(["eval", tmp_path], tmp_path, "config.json")
    refused(["eval", finished / "log.csv"], finished / "log.csv")
    refused(["eval", finished / "checkpoints"], finished / "checkpoints")
    (tmp_path / "begun").mkdir()
    shutil.copy(finished / "recipe.yaml", tmp_path / "begun")
    refused(["eval", tmp_path / "begun"], tmp_path / "begun", "best")


def test_a_network_without_labels(refused, saved, finished, tmp_path):
    refused(["eval", saved], "labels.json")
    shutil.copytree(finished / "best", tmp_path / "best")
    weights = tmp_path / "best" / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused(["eval", tmp_path / "best"], weights, "checksum")


def test_top5_of_few_classes_is_left_out(capsys):
    document = {
        "top1": 0.75,
        "top5": None,
        "n": 8,
        "set": "mine",
        "partition": "only",
        "split": "test",
        "form": "training",
    }
    document["store"] = "0123456789abcdef"
    show_evaluation({**document, "shuffled": False, "selected_on_test": False, "per_class": [], "rates": []})
    result = capsys.readouterr().out
    assert "top-1 75.00 %" in result
    assert "top-5" not in result
