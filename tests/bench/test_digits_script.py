"""`benchmarks/digits.py`: every real recording is tested by networks that were not trained on it."""

import json

import numpy as np
import pytest
from benchmarks import digits as script
from tests.data.shown import save_mnist

from ripe_mambaspike.events.recording import EVENT, Recording
from ripe_mambaspike.events.writing import write

TINY = [
    "data.time_steps=2", "data.grid=12", "schedule.batch_size=4", "schedule.warmup_epochs=0", "schedule.epochs=1",
    "run.recalibrate_batches=1", "run.device=cpu", "run.threads=1",
]  # fmt: skip
FIELDS = "model.fields={stage_channels: [4, 4, 4], embed_dims: [4, 4, 4]}"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Call the script on 40 real recordings and as many simulated ones; what it prints."""
    draw = np.random.default_rng(0)
    for number in range(1, 41):
        events = np.zeros(60, EVENT)
        events["x"], events["y"] = draw.integers(0, 34, (2, 60))
        events["t"], events["p"] = np.sort(draw.integers(0, 300_000, 60)), draw.integers(0, 2, 60)
        path = tmp_path / "real" / "Train" / str((number - 1) % 10) / f"{number:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(Recording(events, (34, 34)), path)
    images = save_mnist(tmp_path / "mnist", train=40, test=10)
    monkeypatch.setattr(script, "FOLDS", 2)

    def call(*words):
        where = ["--real", str(tmp_path / "real"), "--images", str(images), "--out", str(tmp_path / "out")]
        options = ["--seeds", "0", "--jobs", "2", "--test", "10", "--set", *TINY, FIELDS]
        monkeypatch.setattr("sys.argv", ["script", *words, *where, *options])
        script.main()
        return capsys.readouterr().out

    return call


@pytest.mark.slow
def test_all_parts(run, tmp_path):
    assert "simulated" not in run("report").partition("|---")[2]
    shown = run("simulated", "tuned", "real")
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(found) == [
        "simulated alone, 200", "simulated alone, 600", "simulated and 400 real, 200",
        "simulated and 480 real, five folds of 600", "480 real alone, five folds of 600",
    ]  # fmt: skip
    assert all(len(values) == 1 and 0 <= values[0] <= 100 for values in found.values())
    results = {path.parent: json.loads(path.read_text()) for path in tmp_path.glob("out/*/*/result.json")}
    assert len(results) == 6
    folds = [result for path, result in results.items() if "fold" in path.name]
    assert [one["clips"]["train"] + one["clips"]["test"] for one in folds] == [40] * 4
    tuned = json.loads((tmp_path / "out" / "tuned-0" / "seed-0-fold-1" / "result.json").read_text())
    assert tuned["started_from"]["name"].endswith("simulated/seed-0")
    assert (tuned["started_from"]["new_head"], tuned["picked_on"]) == (False, "last epoch")
    again = run("simulated", "tuned", "real")
    assert again.count("%") == shown.count("%") - 6  # the runs' own lines: none has been run again
