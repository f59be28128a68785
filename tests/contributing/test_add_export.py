"""An export target added by the recipe is written, described, checked against PyTorch, and used by the command."""

import json

import numpy as np
import pytest

from ripe_mambaspike import Recording, create_model, write
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.deploy.export.registry import EXPORTS, export_formats
from ripe_mambaspike.events import make_events


def test_an_export_target(follow, restored, tmp_path, capsys):
    export_formats()
    restored(EXPORTS)
    follow("Add an export target", "npz_export")
    fields = {"stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "time_steps": 3, "in_size": 16}
    create_model("nmnist", seed=0, form="deployed", **fields).save_pretrained(tmp_path / "net")
    random = np.random.default_rng(0)
    times = np.sort(random.integers(0, 100_000, 500))
    events = make_events(*random.integers(0, 16, (2, 500)), times, random.integers(0, 2, 500))
    clip = write(Recording(events, (16, 16)), tmp_path / "clip.npz")
    words = ["export", str(tmp_path / "net"), "--to", "npz", "--out", str(tmp_path / "out"), "--check", "--json"]
    assert main([*words, "--recordings", str(clip)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["check"]["ways"]["network"]["difference"] == pytest.approx(0, abs=1e-6)
    assert (tmp_path / "out" / "network.npz").stat().st_size > 1000
    assert (tmp_path / "out" / "README.md").exists()
