"""The trained networks that ship: whole, of the size they claim, and as good as their page says."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from ripe_mambaspike import from_pretrained
from ripe_mambaspike.api import load
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.models.shipped import weights_folder
from ripe_mambaspike.models.synthetic import synthetic_clip

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = weights_folder()
SHARED = Path(os.environ.get("RIPE_SHARED_DATA") or ROOT.parent / "shared" / "data")
REAL = {"nmnist-simulated": 198, "nmnist-simulated-real": 197}  # right of 200


@pytest.mark.parametrize(
    ("name", "parameters", "steps", "side"),
    [
        ("gestures-simulated", 875_122, 16, 64),
        ("gestures-simulated-causal", 659_350, 16, 64),
        ("nmnist-simulated", 869_593, 10, 34),
        ("nmnist-simulated-real", 869_593, 10, 34),
    ],
)
def test_they_load_as_deployed_networks(name, parameters, steps, side):
    assert sum(p.numel() for p in from_pretrained(WEIGHTS / name).parameters()) == parameters
    found = load(WEIGHTS / name)
    assert (found.model.config.form, found.time_steps, found.grid) == ("deployed", steps, (side, side))
    sensor, duration_us = ((128, 128), 1_450_000) if "gestures" in name else ((34, 34), 310_000)
    assert (found.sensor_size, found.crop) == (sensor, None)
    assert found.duration_us == pytest.approx(duration_us, rel=1e-4)
    assert f"`{name}`" in (WEIGHTS / "README.md").read_text()


ANSWERS = {  # mean logits of a synthetic clip, as computed when the networks were first saved
    "gestures-simulated": [
        0.2535, 4.6949, -1.1718, 0.332, -0.588, -1.0082, -0.5345, 0.6305, -0.5854, -0.9508, -1.0649,
    ],
    "gestures-simulated-causal": [
        -1.1441, 0.1082, -0.0543, 3.0621, -0.5155, 0.0827, 0.3208, -0.8449, -0.4848, -1.756, -0.9346,
    ],
    "nmnist-simulated": [2.6951, -0.1079, -0.6988, -0.8668, 2.3180, -0.9067, -0.9215, -1.0018, 0.2230, -0.7083],
    "nmnist-simulated-real": [3.2483, 0.8655, -0.7105, -1.1301, 1.0463, -1.2205, 0.1896, -1.0590, -0.3239, -0.7613],
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
@torch.no_grad()
def test_their_answers_stay(name):
    model = from_pretrained(WEIGHTS / name)
    x = synthetic_clip(model.config.time_steps, *model.config.in_size, seed=7)
    torch.testing.assert_close(model(x).mean(1)[0], torch.tensor(ANSWERS[name]), rtol=0, atol=2e-3)


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


@pytest.mark.slow
def test_an_installed_wheel_has_them(tmp_path):
    source, installed = tmp_path / "source", tmp_path / "installed"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    build = "import setuptools.build_meta as b; b.build_wheel('.')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(source.glob("*.whl"))) as wheel:
        wheel.extractall(installed)
    load_one = "from ripe_mambaspike import *; print(from_pretrained('nmnist-simulated').parameter_count())"
    words = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.run([sys.executable, "-c", load_one], cwd=tmp_path, env=words, check=True, capture_output=True)
    assert int(found.stdout) == 869_593
