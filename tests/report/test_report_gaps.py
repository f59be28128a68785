"""What is missing or broken in a run folder leaves a sentence there."""

import hashlib
import json
import math
import os

import pytest
import torch
from safetensors.torch import load, save

from ripe_mambaspike.report import write_report
from ripe_mambaspike.report.curves import CURVES


def test_without_clips_there_are_sentences(make_run, reader):
    page = reader(write_report(make_run()))
    assert "no held-out data was available" in page.section("samples")
    assert "No rates over the steps" in page.section("firing")
    assert "a synthetic clip" in page.section("account")
    assert "article" not in page.text


@pytest.mark.parametrize(
    ("piece", "section", "words"),
    [
        ("recipe", "recipe", "recipe.yaml is not there."),
        ("rows", "curves", "log.csv is not there."),
        ("rows", "log", "log.csv is not there."),
        ("rows", "firing", "The log holds no firing rates."),
        ("result", "confusion", "There is no confusion matrix"),
        ("result", "classes", "There are no scores by class"),
        ("model", "filters", "The folder best, with the selected network, is not there."),
        ("model", "samples", "The folder best, with the selected network, is not there."),
        ("model", "account", "Nothing was counted."),
    ],
)
def test_a_missing_piece(make_run, clips, reader, piece, section, words):
    page = reader(write_report(make_run(**{piece: None}), clips=clips()))
    assert words in page.section(section)
    assert len(page.text["h2"]) == 9


def test_a_run_without_a_result_says_so_at_the_top(make_run, reader):
    page = reader(write_report(make_run(result=None)))
    assert "There is no score" in page.text["header"][0]
    assert "result.json is not there." in page.text["header"][0]
    assert page.text["h1"] == ["run"]  # the folder's name
    facts = dict(zip(page.text["dt"], page.text["dd"], strict=True))
    assert int(facts["parameters, training"].replace(",", "")) > int(facts["parameters, deployed"].replace(",", "")) > 0


def test_a_recipe_alone_is_enough(make_run, reader):
    page = reader(write_report(make_run(rows=None, result=None, model=None)))
    assert page.text["pre"] == ["name: small run\n"]
    assert len(page.text["h2"]) == 9


def test_one_epoch_is_a_point(make_run, reader):
    folder = make_run(epochs=1)
    page = reader(write_report(folder))
    assert "One epoch only: each curve is a single point." in page.section("curves")
    assert [chart["at"] for chart in page.charts if chart["name"] == "epoch"] == [["1"]] * (len(CURVES) + 1)
    dots = [a for tag, a in page.tags if tag == "circle"]
    assert len(dots) == sum(len(chart.lines) for chart in CURVES) + 6  # every line of every chart, and six layers
    assert "1 epoch," in page.section("log")


def test_not_validated_epochs_are_bridged(make_run, reader, log_rows):
    rows = log_rows(5)
    for row in rows[1::2]:
        row["val_top1"] = row["val_loss"] = ""
    page = reader(write_report(make_run(rows=rows)))
    top1 = next(chart for chart in page.charts if chart["lines"][0]["name"] == "training" and len(chart["lines"]) == 2)
    assert top1["lines"][1]["values"][1::2] == ["–", "–"]
    assert "2 empty" in page.section("log")
    assert "circle" not in page.text


def test_without_a_validation_column(make_run, reader, log_rows):
    rows = [{k: v for k, v in row.items() if not k.startswith("val_")} for row in log_rows(3)]
    page = reader(write_report(make_run(rows=rows)))
    assert "Not in the log: Loss: validation, Top-1: validation." in page.section("curves")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "oops"])
def test_what_is_not_finite_is_named(make_run, reader, value, log_rows):
    rows = log_rows(4)
    rows[2]["loss"] = rows[1]["rate_3"] = value
    page = reader(write_report(make_run(rows=rows)))
    assert "Not finite: loss in epoch 3; rate_3 in epoch 2." in page.section("curves")
    assert page.section("log").count("1 not finite") == 2
    signs = [a for tag, a in page.tags if tag == "path" and a.get("class") == "bad"]
    assert len(signs) == 2
    assert not any("nan" in (a.get("d") or "") for _, a in page.tags)


def test_a_log_of_nothing_but_nan(make_run, reader, log_rows):
    rows = [dict.fromkeys(row, math.nan) for row in log_rows(2)]
    page = reader(write_report(make_run(rows=rows)))
    assert page.section("curves").count("Nothing finite was recorded.") == len(CURVES)


@pytest.mark.parametrize(
    "text",
    ["", "epoch,loss\n", "epoch,loss\n1,2.5\n2", "\0\0", 'epoch,"loss\n1,2', "epoch,epoch\n1,2\n", ",,,\n1,2,3\n"],
    ids=["empty", "header", "partition", "zeros", "quote", "twice", "nameless"],
)
def test_a_damaged_log(make_run, reader, text):
    folder = make_run()
    (folder / "log.csv").write_text(text)
    assert len(reader(write_report(folder)).text["h2"]) == 9


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "null", '{"top1": NaN}', "[" * 100_000],
    ids=["empty", "partition", "list", "null", "nan", "deep"],
)
def test_a_damaged_result(make_run, reader, text):
    folder = make_run()
    (folder / "result.json").write_text(text)
    page = reader(write_report(folder))
    assert "There is no score" in page.text["header"][0]
    assert len(page.text["h2"]) == 9


@pytest.mark.parametrize(
    "value",
    [None, "x", -1, math.inf, [], {}, True, 10**400],
    ids=["none", "text", "negative", "infinite", "list", "dict", "flag", "huge"],
)
@pytest.mark.parametrize(
    "key", ["top1", "n", "epoch", "confusion", "per_class", "parameters", "seed", "seconds", "name", "commit", "loss"]
)
def test_any_value_of_the_result_may_be_wrong(make_run, reader, key, value, result_of):
    folder = make_run(result=result_of() | {key: value}, model=None)
    assert len(reader(write_report(folder)).text["h2"]) == 9


@pytest.mark.parametrize(
    "confusion",
    [[[1, 2]], [[1, -2], [3, 4]], [[1.5]], [["a"]], [1], [[0, 0], [0, 0]]],
    ids=["flat", "negative", "fraction", "text", "row", "zeros"],
)
def test_a_confusion_that_is_no_square_of_counts(make_run, reader, confusion, result_of):
    page = reader(write_report(make_run(result=result_of() | {"confusion": confusion}, model=None)))
    empty = confusion == [[0, 0], [0, 0]]
    assert ("Every clip was classified correctly" in page.section("confusion")) == empty
    assert ("There is no confusion matrix" in page.section("confusion")) != empty


def test_damaged_weights(make_run, clips, reader, caplog):
    folder = make_run()
    write_report(folder, clips=clips())
    assert caplog.messages == []  # complete
    (folder / "best" / "model.safetensors").write_bytes(b"nothing")
    page = reader(write_report(folder, clips=clips()))
    assert "The selected network cannot be loaded" in page.section("filters")
    (line,) = caplog.messages  # the page that was complete is gone
    assert str(folder / "report.html") in line
    assert str(folder / "best" / "model.safetensors") in line


def test_an_unknown_neuron_is_named_in_a_warning(make_run, clips, reader, caplog):
    """As where the file that registers it was not imported."""
    folder = make_run()
    config = folder / "best" / "config.json"
    config.write_text(config.read_text().replace('"silif"', '"alif"'))
    page = reader(write_report(folder, clips=clips()))
    assert "RIPE_IMPORT" in page.section("filters")
    (line,) = caplog.messages
    assert "'alif'" in line


def test_a_report_without_data_warns(make_run, caplog):
    folder = make_run()
    write_report(folder)
    assert len(caplog.messages) == 1
    write_report(folder, samples=0)
    assert len(caplog.messages) == 1


def test_weights_that_are_not_finite(make_run, clips, reader, network):
    import copy

    broken = copy.deepcopy(network)
    with torch.no_grad():
        broken.head.weight.zero_()
        broken.head.bias.fill_(3e38)  # finite, and the sum of two of them is not
    folder = make_run(model=broken)
    page = reader(write_report(folder, clips=clips()))
    assert "no answer: the logits are not finite" in page.section("samples")
    assert not any("nan" in str(a.get(name)) for _, a in page.tags for name in ("d", "x", "y", "width", "height"))
    weights, config = folder / "best" / "model.safetensors", folder / "best" / "config.json"
    tensors = load(weights.read_bytes())
    tensors["head.bias"].fill_(torch.nan)
    document = json.loads(config.read_text())
    weights.write_bytes(save(tensors, {"format": "pt"}))
    document["weights"]["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    config.write_text(json.dumps(document))
    page = reader(write_report(folder, clips=clips()))
    assert "The selected network cannot be loaded" in page.section("filters")


def test_missing_labels_fall_back_to_the_result(make_run, clips, reader):
    folder = make_run()
    (folder / "best" / "labels.json").unlink()
    assert "wave" in reader(write_report(folder, clips=clips())).text["article"][0]
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"per_class": None}))
    page = reader(write_report(folder, clips=clips()))
    assert "true class 0" in page.text["article"][0]


@pytest.mark.parametrize("name", ["recipe.yaml", "log.csv", "result.json"])
@pytest.mark.parametrize("kind", ["pipe", "sparse"])
def test_a_file_without_end_is_not_read(make_run, reader, name, kind):
    folder = make_run()
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).touch()
        os.truncate(folder / name, 1 << 42)
    page = reader(write_report(folder))
    sections = {"recipe.yaml": "recipe", "log.csv": "log"}
    result = page.section(sections[name]) if name in sections else page.text["header"][0]
    assert f"{name} cannot be read" in result
