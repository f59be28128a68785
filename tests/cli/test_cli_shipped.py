"""Shipped networks by name on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from ripe_mambaspike import load, predict, write
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.models.shipped import weights_folder


@pytest.fixture
def clip(tmp_path, monkeypatch):
    """Noise on the digits' sensor, in the folder that the commands run in."""
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    x, y, t = (draws.integers(0, most, 2000) for most in (34, 34, 300_000))
    return write(Recording(make_events(x, y, np.sort(t), t % 2), (34, 34)), tmp_path / "clip.npz")


def test_predict_by_name_as_by_folder(clip, capsys):
    assert main(["predict", "nmnist-simulated", str(clip), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recordings"][0]
    expected = predict(load(weights_folder() / "nmnist-simulated"), clip)
    assert (found["label"], found["probability"]) == (expected.label, pytest.approx(expected.probability))


def test_account_by_name(clip, capsys):
    assert main(["account", "nmnist-simulated", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["deployed"] == 869_593


def test_an_export_by_name_is_written_here_and_not_into_the_package(clip, capsys):
    before = sorted(weights_folder().iterdir())
    assert main(["export", "nmnist-simulated", "--to", "safetensors", "--json"]) == 0
    folder = Path(json.loads(capsys.readouterr().out)["folder"])
    assert (folder / "model.safetensors").is_file()
    assert folder.resolve().parents[1] == clip.parent.resolve()
    assert sorted(weights_folder().iterdir()) == before
