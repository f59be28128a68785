"""`benchmarks/study_calls.py` and `h200.sh studies`: each study on its own sets, and no run that earlier calls made."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from benchmarks import study_calls as script
from tests.studies.stored_results import write_run

from raising import raises
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.studies.plan import plan_study
from ripe_mambaspike.studies.run import run_study
from ripe_mambaspike.studies.study import load_study

ROOT = Path(__file__).parents[2]
RATES = {"layers": [0.1] * 6, "mean": 0.1, "sd_over_epochs": 0.01, "epochs": 4}


@pytest.fixture
def earlier(tmp_path):
    """The results of a machine that ran the full network of `components` on gestures-hard with seeds 0 and 1."""
    out = tmp_path / "elsewhere"
    for run in plan_study(load_study("components"), ["gestures-hard"], "0-1", out=out).runs:
        if run.arm == "full":
            write_run(run, 0.8, measured=["rates", "cost", "speed"], rates=RATES)
    run_study("components", ["gestures-hard"], "0-1", out=out, report_only=True)
    return out / "components" / "results.json"


def archive_of(file, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(file, "./components-gestures-hard-20261120-000000.json")
    return path


def test_a_word_names_seeds_and_sets():
    assert script.parse_word("tokens") == ("tokens", "0-2", ["gestures-hard"])
    assert script.parse_word("components:0-4@sim-cifar10,x") == ("components", "0-4", ["sim-cifar10", "x"])
    assert script.parse_word("components", ["gestures-hard"]) == ("components", "0-4", ["gestures-hard"])
    with raises(ConfigError, "name"):
        script.parse_word("nothing")


@pytest.mark.parametrize("packed", [False, True])
def test_runs_that_any_study_made_are_not_left(tmp_path, earlier, packed):
    """The full network is also the reference of `tokens`, whose arm with all tokens is the same run."""
    files = script.unpack([archive_of(earlier, tmp_path / "x.tgz") if packed else earlier], tmp_path)
    words = ["components:0-1@gestures-hard", "tokens:0-1", "attention:0"]
    found = {call.study: call for call in script.calls(words, tmp_path / "work", files)}
    without = {call.study: call for call in script.calls(words, tmp_path / "none", [])}
    left = {name: without[name].runs - call.runs for name, call in found.items()}
    assert left == {"components": 2, "tokens": 2, "attention": 0}
    assert (found["attention"].set, found["tokens"].seeds) == ("sim-caltech101", "0-1")
    assert found["tokens"].seconds == pytest.approx(66.0 * found["tokens"].runs)
    assert without["tokens"].seconds is None


def test_a_file_that_is_not_there(tmp_path):
    with raises(ConfigError, "earlier"):
        script.unpack([tmp_path / "none.tgz"], tmp_path)


PYTHON = """#!{python}
import json, pathlib, runpy, sys
words = sys.argv[1:]
if words[1] == "benchmarks.study_calls":
    sys.argv = words[1:]
    runpy.run_module(words[1], run_name="__main__")
place = {{word: words[at + 1] for at, word in enumerate(words) if word.startswith("--") and at + 1 < len(words)}}
with open("{log}", "a") as log:
    print(json.dumps(words[2:]), file=log)
if words[2] == "study":
    folder = pathlib.Path(place["--out"]) / words[3]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps({{"study": words[3], "set": place["--on"]}}))
    print("1/1 x: top-1 50.00 %")
"""


def test_a_call_makes_the_sets_runs_the_studies_and_packs_one_file(tmp_path, earlier):
    python, log, out = tmp_path / "python", tmp_path / "log", tmp_path / "out"
    python.write_text(PYTHON.format(python=sys.executable, log=log))
    python.chmod(0o755)
    given = {
        "OUT": out, "PYTHON": python, "WORK": tmp_path / "work", "DATA": tmp_path / "data", "JOBS": "3",
        "STUDIES": "components:0-1@gestures-hard tokens:0 attention:0",
        "BEFORE": archive_of(earlier, tmp_path / "b.tgz"),
    }  # fmt: skip
    environment = {**os.environ, **{name: str(value) for name, value in given.items()}}
    done = subprocess.run(
        ["bash", "benchmarks/h200.sh", "studies"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    commands = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(words[2] for words in commands if words[0] == "sim") == ["gestures-hard", "sim-caltech101"]
    studies = {words[1]: words for words in commands if words[0] == "study"}
    assert studies.keys() == {"components", "tokens", "attention"}
    assert studies["components"][2:6] == ["--on", "gestures-hard", "--seeds", "0-1"]
    assert "--whole-runs" in studies["tokens"]
    with tarfile.open(out / "studies.tgz") as archive:
        names = {Path(name).name.rsplit("-", 2)[0] for name in archive.getnames() if name.endswith(".json")}
        assert len([name for name in archive.getnames() if name.endswith(".txt")]) == 3
    assert {"components-gestures-hard", "tokens-gestures-hard", "attention-sim-caltech101"} <= names
    assert [file.name for file in out.iterdir()] == ["studies.tgz"]
    assert "components on gestures-hard: 1 of 8 runs" in done.stdout
