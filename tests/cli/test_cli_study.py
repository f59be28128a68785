"""`ripe study`: the list, the plan, a whole study in seconds, and what is refused."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

SMALL = (
    "data.time_steps=4", "data.grid=16", "model.fields.stage_channels=[4, 8, 8]", "model.fields.embed_dims=[4, 8, 8]",
    "schedule.batch_size=11", "schedule.epochs=1", "schedule.warmup_epochs=0", "run.recalibrate_batches=2",
    "run.device=cpu",
)  # fmt: skip


@pytest.fixture
def words(gestures, tmp_path):
    """A study of two arms on the small simulated set."""
    root = tmp_path / "sets"
    root.mkdir()
    (root / "synthgesture").symlink_to(gestures)
    study = ["study", "components", "--on", "synthgesture", "--arms", "no-tdm"]
    return [*study, "--root", root, "--out", tmp_path / "out", "--set", *SMALL]


def test_the_list(ripe):
    result = ripe("study", "list")
    assert result.code == 0
    assert "components" in result.out
    listed = {one["name"]: one for one in json.loads(ripe("study", "list", "--json").out)}
    assert listed["components"]["answers"] == ["table-2", "table-11"]
    assert len(listed["neuron-mixes"]["arms"]) == 27


def test_a_plan_starts_nothing(ripe, words, tmp_path):
    result = ripe(*words, "--seeds", "0-2", "--plan", "--json")
    document = json.loads(result.out)
    assert result.code == 0
    assert document["left"] == {"runs": 6, "clips": 6 * 22, "seconds": None, "source": document["left"]["source"]}
    assert [(run["arm"], run["seed"], run["ended"]) for run in document["runs"]][:2] == [
        ("full", 0, False),
        ("no-tdm", 0, False),
    ]
    assert not (tmp_path / "out").exists()
    assert "6 runs, 6 left to do: 132 training clips" in ripe(*words, "--seeds", "0-2", "--plan").out


def test_a_plan_without_data_says_how_it_is_made(ripe, tmp_path):
    result = ripe("study", "tokens", "--root", tmp_path / "none", "--out", tmp_path, "--plan")
    assert result.code == 0
    assert f"ripe sim make gestures-hard --out {tmp_path}" in result.out
    assert "12 runs, 12 left to do: an unknown number" in result.out


@pytest.mark.slow
def test_a_study_its_report_and_a_second_call(ripe, words, tmp_path):
    first = ripe(*words, "--seeds", "0-1", "--jobs", "2", "--json")
    assert first.code == 0
    document = json.loads(first.out)
    assert (document["planned"], document["ended"], document["failed"]) == (4, 4, 0)
    arms = document["sets"][0]["arms"]
    assert [(arm["arm"], arm["top1"]["n"]) for arm in arms] == [("full", 2), ("no-tdm", 2)]
    assert all(arm["cost"]["microjoules"] > 0 and len(arm["rate_by_layer"]) == 6 for arm in arms)
    runs = sorted((tmp_path / "out" / "runs" / "synthgesture").glob("*/result.json"))
    before = [path.stat().st_mtime_ns for path in runs]
    second = ripe(*words, "--seeds", "0-1", "--json")
    assert json.loads(second.out)["sets"] == document["sets"]
    assert [path.stat().st_mtime_ns for path in runs] == before
    shown = ripe(*words, "--seeds", "0-1", "--report")
    assert "A3 without TDM" in shown.out
    alone = ripe("study", "components", "--out", tmp_path / "out", "--report", "--json")
    assert json.loads(alone.out)["sets"][0]["arms"] == arms
    plan = json.loads(ripe(*words, "--seeds", "0-2", "--plan", "--json").out)
    assert plan["left"]["runs"] == 2
    assert plan["left"]["seconds"] > 0
    measured = json.loads(ripe(*words, "--seeds", "0-2", "--plan", "--measure", "--json").out)
    assert measured["left"]["seconds"] > 0


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_same_command_continues(ripe, words, tmp_path):
    """SIGINT in the first run of a long schedule: a checkpoint, exit code 130, and the next call resumes."""
    settings = [one for one in SMALL if "epochs" not in one] + ["schedule.epochs=200", "schedule.warmup_epochs=0"]
    long = [*map(str, words[: words.index("--set")]), "--seeds", "0", "--set", *settings]
    process = subprocess.Popen(
        [sys.executable, "-m", "ripe_mambaspike", *long], stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    runs, until = tmp_path / "out" / "runs" / "synthgesture", time.monotonic() + 120
    while not list(runs.glob("*/checkpoints/*")) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command continues" in err
    (folder,) = runs.glob("*-seed-0")
    assert not (folder / ".lock").exists()
    assert not (folder / "result.json").exists()
    before = {path.name for path in (folder / "checkpoints").iterdir()}
    result = ripe(*long, "--limit", "8", "--json")
    assert json.loads(result.out)["ended"] == 0
    log = (runs / "logs" / f"{folder.name}.txt").read_text()
    assert re.search(r"resuming at (the end of )?epoch \d+", log)
    assert {path.name for path in (folder / "checkpoints").iterdir()} != before


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["study", "component"], ("NAME", "components")),
        (["study", "components", "--on", "nowhere"], ("nowhere",)),
        (["study", "components", "--on", "gestures-hard", "--seeds", "x"], ("--seeds",)),
        (["study", "components", "--on", "gestures-hard", "--jobs", "0"], ("--jobs",)),
        (["study", "components", "--on", "gestures-hard", "--jobs", "2", "--slurm", "gpu"], ("--jobs",)),
        (["study", "components", "--on", "gestures-hard", "--slurm"], ("--slurm", "PARTITION")),
        (["study", "components", "--on", "gestures-hard", "--whole-runs"], ("--whole-runs", "limit")),
        (["study", "components", "--on", "gestures-hard", "--arms", "tdm"], ("--arms", "no-tdm")),
        (["study", "components", "--on", "gestures-hard", "--limit", "0"], ("--limit",)),
        (["study", "components", "--on", "gestures-hard", "--root", "none"], ("ripe sim make",)),
        (["study", "components", "--on", "gestures-hard", "--set", "run.seed=3"], ("run.seed",)),
        (["study", "components", "--on", "gestures-hard", "--reuse", "none"], ("--reuse", "none")),
    ],
)
def test_refused(refused, tmp_path, monkeypatch, more, named):
    monkeypatch.chdir(tmp_path)
    refused(more, *named)
    assert list(tmp_path.iterdir()) == []
