"""Adapting a network to unlabeled recordings: what changes, what stays, and what is refused."""

import json

import numpy as np
import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import Recording, adapt, create_model, dual_kernel, from_pretrained, fuse, predict, write
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.errors import ConfigError, InputError, ReadError
from ripe_mambaspike.events.recording import make_events
from ripe_mambaspike.models.labels import Labels

CLASSES = ("left", "right", "up")
FIELDS = {"stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "time_steps": 4, "in_size": (16, 16), "num_classes": 3}


def record(folder, names, each, events=300, seed=0):
    draw = np.random.default_rng(seed)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            x, y = draw.integers(0, 16, (2, events))
            made = make_events(x, y, np.sort(draw.integers(0, 100_000, events)), draw.integers(0, 2, events))
            write(Recording(made, (16, 16)), folder / name / f"{number}.bin")
    return folder


@pytest.fixture
def network(tmp_path, loud):
    model = loud("dvsgesture", **FIELDS)
    model.labels = Labels(CLASSES, None, None, 4, (16, 16), "time", binary=False, sensor_size=(16, 16))
    return model.save_pretrained(tmp_path / "network")


def statistics(model):
    return {name: value for name, value in model.named_buffers() if "running" in name}


def test_the_statistics_become_those_of_the_recordings_and_no_weight_changes(network, tmp_path):
    files = record(tmp_path / "own", CLASSES, 3)
    done = adapt(network, [files], tmp_path / "out")
    before, after = from_pretrained(network), from_pretrained(tmp_path / "out")
    for (name, first), second in zip(before.named_parameters(), after.parameters(), strict=True):
        assert torch.equal(first, second), name
    assert all(not torch.equal(first, statistics(after)[name]) for name, first in statistics(before).items())
    assert after.labels == before.labels
    assert (done.recordings, done.labeled) == (9, 9)
    paths = sorted(files.rglob("*.bin"))
    answers = [[predict(model, path).label for path in paths] for model in (before, after)]
    right = [sum(label == path.parent.name for label, path in zip(given, paths, strict=True)) / 9 for given in answers]
    assert [done.before.accuracy, done.after.accuracy] == pytest.approx(right)
    assert done.changed == pytest.approx(sum(a != b for a, b in zip(*answers, strict=True)) / 9)


def test_recordings_without_labels_have_no_accuracy(network, tmp_path):
    done = adapt(network, [record(tmp_path / "own", ("today",), 3)], tmp_path / "out")
    assert (done.labeled, done.before.accuracy, done.after.accuracy) == (0, None, None)
    assert 0 <= done.changed <= 1


def test_a_deployed_network_needs_reference_recordings(network, tmp_path):
    deployed = fuse(from_pretrained(network), quiet=True).save_pretrained(tmp_path / "deployed")
    own = record(tmp_path / "own", CLASSES, 2, events=900)
    with raises(ConfigError, field="reference"):
        adapt(deployed, [own], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    reference = record(tmp_path / "reference", CLASSES, 2, seed=1)
    adapt(deployed, [own], tmp_path / "out", reference=[reference])
    assert from_pretrained(tmp_path / "out").config.form == "deployed"
    same = adapt(deployed, [reference], tmp_path / "same", reference=[reference])
    assert same.before.confidence == pytest.approx(same.after.confidence, abs=0.05)


def test_the_command(network, tmp_path, capsys):
    own = record(tmp_path / "own", CLASSES, 2)
    assert main(["adapt", str(network), str(own), "--out", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["recordings"] == 6
    assert main(["adapt", str(network), str(own), "--out", str(tmp_path / "again")]) == 0
    first, second = (from_pretrained(tmp_path / name).state_dict() for name in ("out", "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert main(["adapt", str(network), str(tmp_path / "none.bin"), "--out", str(tmp_path / "no")]) == 2
    assert not (tmp_path / "no").exists()


def test_wrong_input(network, tmp_path):
    own = record(tmp_path / "own", CLASSES, 2)
    with raises(ConfigError, field="out"):
        adapt(network, [own], network)
    with raises(ConfigError, field="reference"):
        adapt(network, [own], tmp_path / "out", reference=[own])
    with raises(InputError, field="recordings"):
        adapt(network, [own / "left" / "0.bin"], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with raises(InputError, field="recordings", path=tmp_path / "empty"):
        adapt(network, [tmp_path / "empty"], tmp_path / "out")
    (own / "left" / "0.bin").write_bytes(b"x" * 7)
    with pytest.raises((ReadError, InputError)):
        adapt(network, [own], tmp_path / "out")
    dual = dual_kernel(from_pretrained(network), quiet=True).save_pretrained(tmp_path / "dual")
    with raises(ConfigError, field="form"):
        adapt(dual, [own], tmp_path / "out")
    plain = create_model("event-mlp", num_classes=3, time_steps=4, in_size=16).save_pretrained(tmp_path / "mlp")
    with raises(ConfigError, field="model"):
        adapt(plain, [own / "right"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
