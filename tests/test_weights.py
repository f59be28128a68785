"""The trained networks that ship: whole, of the size they claim, and as good as their page says."""

import json
import os
from pathlib import Path

import pytest

from ripe_mambaspike import from_pretrained
from ripe_mambaspike.api import load
from ripe_mambaspike.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "weights"
SHARED = Path(os.environ.get("RIPE_SHARED_DATA") or ROOT.parent / "shared" / "data")
REAL = {"nmnist-simulated": 198, "nmnist-simulated-real": 197}  # right of 200


@pytest.mark.parametrize(
    ("name", "parameters", "steps", "side"),
    [
        ("gestures-simulated", 875_122, 16, 128),
        ("nmnist-simulated", 869_593, 10, 34),
        ("nmnist-simulated-real", 869_593, 10, 34),
    ],
)
def test_they_load_as_deployed_networks(name, parameters, steps, side):
    assert sum(p.numel() for p in from_pretrained(WEIGHTS / name).parameters()) == parameters
    found = load(WEIGHTS / name)
    assert (found.model.config.form, found.steps, found.grid) == ("deployed", steps, (side, side))
    assert (found.sensor_size, found.crop) == ((side, side), None)
    assert found.duration_us == (1_500_000 if side == 128 else 310_000)
    assert f"`{name}`" in (WEIGHTS / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "nmnist-real").is_dir(), reason="the shared recordings are not there")
def test_digits_are_told_on_real_recordings_as_often_as_reported(tmp_path, capsys):
    (tmp_path / "Train").symlink_to(SHARED / "nmnist-real" / "Train")
    assert main(["data", "prepare", "nmnist-600", "--root", str(tmp_path)]) == 0
    capsys.readouterr()
    for name, right in REAL.items():
        words = ["eval", str(WEIGHTS / name), "--dataset", "nmnist-600", "--root", str(tmp_path), "--split", "test"]
        assert main([*words, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["n"], round(said["top1"] * said["n"])) == (200, right)
