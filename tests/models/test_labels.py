"""`labels.json` is written and read back the same, and an invalid file is refused with its field."""

import json
import os
from dataclasses import replace

import pytest
from tests.raising import raises

from ripe_mambaspike.errors import WeightsError
from ripe_mambaspike.models.labels import Calibration, Labels, UnknownRule, find_checkpoint, read_labels, save_labels

OLD = Labels(("clap", "wave", "énorme"), "synthgesture", None, 16, (34, 48), "count", True, 7, "validation")
LABELS = replace(OLD, store="0123456789abcdef", sensor_size=(128, 96), crop=(2, 0, 120, 96), duration_us=1_500_000)


def document():
    return {
        "format": "ripe-labels",
        "version": 4,
        "classes": ["clap", "wave", "énorme"],
        "data": {
            "set": "synthgesture",
            "partition": None,
            "store": "0123456789abcdef",
            "sensor_size": [128, 96],
            "crop": [2, 0, 120, 96],
            "duration_us": 1_500_000,
            "time_steps": 16,
            "grid": [34, 48],
            "by": "count",
            "binary": True,
        },
        "epoch": 7,
        "protocol": "validation",
    }


def test_labels_are_written_in_their_format_and_read_back(tmp_path):
    path = save_labels(LABELS, tmp_path)
    assert json.loads(path.read_text("utf-8")) == document()
    assert read_labels(tmp_path) == LABELS
    assert [one.name for one in tmp_path.iterdir()] == ["labels.json"]


def test_a_calibration_is_written_and_read_back(tmp_path):
    rule = UnknownRule(score="energy", threshold=-3.5, keep=0.95)
    for unknown in (rule, None):
        facts = Calibration(temperature=1.5, set="folder", split="val", store="0123", clips=40, unknown=unknown)
        save_labels(replace(LABELS, calibration=facts), tmp_path)
        assert read_labels(tmp_path) == replace(LABELS, calibration=facts)
        assert read_labels(tmp_path).calibration.unknown == unknown


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0), ("temperature", -1.0), ("temperature", "1"), ("split", "test"), ("clips", 0),
        ("unknown", {}), ("unknown.threshold", None), ("unknown.score", "entropy"), ("unknown.keep", 1.5),
        ("unknown.more", 1), ("more", 1),
    ],
)  # fmt: skip
def test_a_wrong_calibration_is_refused(tmp_path, field, value):
    rule = {"score": "probability", "threshold": 0.5, "keep": 0.95}
    facts = {"temperature": 1.5, "set": "folder", "split": "val", "store": "0123", "clips": 40, "unknown": rule}
    *above, last = field.split(".")
    (rule if above else facts)[last] = value
    (tmp_path / "labels.json").write_text(json.dumps({**document(), "calibration": facts}))
    with raises(WeightsError, path=tmp_path / "labels.json") as caught:
        read_labels(tmp_path)
    assert caught.value.field.startswith(f"calibration.{field}")


def test_files_of_earlier_versions(tmp_path):
    made = document()
    made["version"] = 3
    made["data"]["cut"] = made["data"].pop("partition")
    (tmp_path / "labels.json").write_text(json.dumps(made))
    assert read_labels(tmp_path) == LABELS
    made["version"] = 2
    made["data"]["steps"] = made["data"].pop("time_steps")
    (tmp_path / "labels.json").write_text(json.dumps(made))
    assert read_labels(tmp_path) == LABELS
    made["version"] = 1
    for name in ("store", "sensor_size", "crop", "duration_us"):
        del made["data"][name]
    (tmp_path / "labels.json").write_text(json.dumps(made))
    assert read_labels(tmp_path) == OLD


def test_labels_without_a_training_run(tmp_path):
    plain = Labels(("a", "b"), None, None, 8, (16, 16), "time", False)
    save_labels(plain, tmp_path)
    assert read_labels(tmp_path) == plain


def test_sixty_thousand_names_are_read_quickly(tmp_path):
    made = document() | {"classes": [f"class {number}" for number in range(60_000)]}
    (tmp_path / "labels.json").write_text(json.dumps(made))
    assert len(read_labels(tmp_path).classes) == 60_000  # took 20 s when names were compared pair by pair


def test_a_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "labels.json")
    with pytest.raises(WeightsError):
        read_labels(tmp_path)


def test_labels_that_could_not_be_read_are_not_written(tmp_path):
    with raises(WeightsError, "classes", mentions=("clap",)):
        save_labels(replace(LABELS, classes=("clap", "clap")), tmp_path)
    with raises(WeightsError, path=tmp_path / "nowhere" / "labels.json"):
        save_labels(LABELS, tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


WRONG = {
    "format": ("format", "other", "format", "ripe-labels"),
    "version": ("version", 5, "version", "5"),
    "sensor": ("data.sensor_size", [0, 3], "data.sensor_size[0]"),
    "sensor of 2**40": ("data.sensor_size", [2**40, 3], "data.sensor_size[0]"),
    "crop beyond the sensor": ("data.crop", [10, 0, 120, 96], "data.crop"),
    "crop of nothing": ("data.crop", [10, 0, 0, 96], "data.crop[2]"),
    "duration": ("data.duration_us", 0, "data.duration_us"),
    "store": ("data.store", 7, "data.store"),
    "version true": ("version", True, "version"),
    "no classes": ("classes", [], "classes"),
    "classes by number": ("classes", [1, 2], "classes[0]"),
    "a name of nothing": ("classes", ["a", ""], "classes[1]"),
    "twice": ("classes", ["a", "b", "a"], "classes", "'a' twice"),
    "data": ("data", [1], "data"),
    "epoch": ("epoch", -1, "epoch", "-1"),
    "epoch text": ("epoch", "7", "epoch"),
    "protocol": ("protocol", "test", "protocol", "test", "paper"),
    "unknown": ("colour", 3, "colour"),
    "set": ("data.set", 3, "data.set"),
    "partition": ("data.partition", 3, "data.partition"),
    "steps": ("data.time_steps", 0, "data.time_steps", "0"),
    "steps true": ("data.time_steps", True, "data.time_steps"),
    "grid": ("data.grid", [34], "data.grid"),
    "grid zero": ("data.grid", [34, 0], "data.grid[1]"),
    "by": ("data.by", "window", "data.by", "window"),
    "binary": ("data.binary", 1, "data.binary"),
    "unknown in data": ("data.colour", 1, "data.colour"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_error_names_a_wrong_field(tmp_path, case):
    field, value, named, *values = WRONG[case]
    made = document()
    part = made["data"] if "." in field else made
    part[field.split(".")[-1]] = value
    (tmp_path / "labels.json").write_text(json.dumps(made))
    with raises(WeightsError, named, tmp_path / "labels.json", values) as caught:
        read_labels(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["classes", "data", "epoch", "protocol", "data.set", "data.grid", "data.binary"])
def test_the_error_names_a_missing_field(tmp_path, field):
    made = document()
    part = made["data"] if "." in field else made
    del part[field.split(".")[-1]]
    (tmp_path / "labels.json").write_text(json.dumps(made))
    with raises(WeightsError, field, tmp_path / "labels.json"):
        read_labels(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"3", b"[" * 100_000])
def test_damaged(tmp_path, content):
    (tmp_path / "labels.json").write_bytes(content)
    with raises(WeightsError, path=tmp_path / "labels.json"):
        read_labels(tmp_path)


def test_missing(tmp_path):
    with raises(WeightsError, path=tmp_path / "labels.json"):
        read_labels(tmp_path)


def test_find_checkpoint_in_a_run_and_a_network(tmp_path):
    run = tmp_path / "run"
    (run / "best").mkdir(parents=True)
    (run / "recipe.yaml").write_text("")
    with raises(WeightsError, path=run):
        find_checkpoint(run)
    (run / "best" / "config.json").write_text("{}")
    assert find_checkpoint(run) == run / "best"
    assert find_checkpoint(str(run / "best")) == run / "best"
    (run / "config.json").write_text("{}")
    assert find_checkpoint(run) == run


def test_other_paths_are_not_checkpoints(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"x")
    for name in ("", "weights.pt", "nowhere", "x" * 5000, "a\0b"):
        with raises(WeightsError, path=tmp_path / name):
            find_checkpoint(tmp_path / name)
