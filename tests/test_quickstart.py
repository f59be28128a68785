"""`make quickstart` in a reduced form: the same commands on a few clips and a narrow network."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def quickstart(folder):
    binaries = folder / "bin"
    binaries.mkdir(exist_ok=True)
    command = binaries / "ripe"  # as installed, whatever the environment is called
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ripe_mambaspike "$@"\n')
    command.chmod(0o755)
    settings = "schedule.epochs=2 schedule.first_epochs=1 data.grid=16 data.time_steps=4 run.device=cpu"
    sizes = {"TRAIN": "22", "VAL": "11", "TEST": "11", "SET": settings}
    reduced = {"BIN": str(binaries), "OMP_NUM_THREADS": "1", **{f"QUICKSTART_{k}": v for k, v in sizes.items()}}
    script = ROOT / "examples" / "quickstart.sh"
    words = ["sh", str(script)]
    return subprocess.run(words, cwd=folder, env={**os.environ, **reduced}, capture_output=True, text=True, timeout=300)


def test_from_nothing_to_a_report(tmp_path):
    done = quickstart(tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "runs/quickstart/result.json").read_text())
    assert (result["n"], result["split"]) == (11, "test")
    told = re.findall(r"top-1 ([\d.]+) %", done.stdout)
    reported = f"{100 * result['top1']:.2f}"
    assert told[:2] == [reported, reported]  # of the run, and of the fused network
    assert len(told) == 3  # and with its time steps shuffled
    assert done.stdout.count("time steps shuffled") == 1
    assert re.search(r" 0 of [\d,]+ spikes differ", " ".join(done.stdout.split()))
    assert done.stdout.count("test/0") == 3  # predictions
    assert done.stdout.rstrip().endswith("The report of the run: runs/quickstart/report.html")
    assert (tmp_path / "runs/quickstart/report.html").stat().st_size > 10_000
    config = json.loads((tmp_path / "runs/quickstart/deployed/config.json").read_text())
    assert config["config"]["form"] == "deployed"


def test_the_makefile_runs_it():
    lines = (ROOT / "Makefile").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("quickstart:"))
    assert lines[at + 1].strip() == "@BIN=$(BIN) sh examples/quickstart.sh"
