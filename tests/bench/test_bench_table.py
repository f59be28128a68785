"""The results table: what is wanted beside what was measured, and a failed command costs its own rows alone."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "results_table.py"
MACHINE = {"name": "a machine", "torch": "2", "threads": 2, "commit": "abc"}
CELL = {"p95_ms": 9.0, "samples_per_second": 700.0, "activation_mib": 30.0, "matrix_share": 0.5}


@pytest.fixture(scope="module")
def table():
    spec = importlib.util.spec_from_file_location("results_table", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def infer(milliseconds, agrees=True):
    row = {"batch": 1, "agreement": {"agrees": agrees}, "says": "it says so", "speedup": 7.0 if agrees else None}
    row |= {"captured": {**CELL, "median_ms": milliseconds}, "reference": {"error": "ran out of memory"}}
    return {
        "bench": "infer",
        "machine": MACHINE,
        "exit_code": int(not agrees),
        "rows": [row],
        "command": "ripe bench x",
    }


def line(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


@pytest.mark.parametrize(("milliseconds", "reached"), [(0.7, "aim"), (1.5, "must"), (2.5, "no")])
def test_reached_or_not(table, milliseconds, reached):
    text = table.render({"infer bfloat16": infer(milliseconds)}, "cuda", None)
    wanted = f"| deployed, T 16, 128², B 1, bfloat16 | 30.5 | 2 | 0.8 | {milliseconds} ms | {reached} |"
    assert wanted in text
    assert "commit abc" in text
    other = table.render({"infer bfloat16": infer(milliseconds)}, "cuda", None, "--side 16")
    assert line(other, "| deployed, T 16, 128², B 1, bfloat16").endswith("| not judged |")
    assert "7.00 ×" in line(text, "| infer bfloat16, B 1 | captured")
    assert "ran out of memory" in line(text, "| infer bfloat16, B 1 | reference")


def test_a_wrong_result_reaches_nothing(table):
    text = table.render({"infer bfloat16": infer(0.1, agrees=False)}, "cuda", None)
    assert line(text, "| deployed, T 16, 128², B 1, bfloat16").endswith("does not agree | no |")
    assert "×" not in line(text, "| infer bfloat16, B 1 | captured")


def test_a_failure_costs_its_own_rows(table, monkeypatch, tmp_path):
    def run(command, **_):
        if "float32" in command:
            return subprocess.CompletedProcess(command, 2, "", "first\nripe: there is too little memory\n")
        if "bfloat16" in command:
            return subprocess.CompletedProcess(command, 0, json.dumps(infer(1.0)), "")
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["results_table.py", "--out", str(tmp_path / "a"), "--only", "infer", "scan"])
    table.main()
    text = (tmp_path / "a.md").read_text()
    assert "there is too little memory" in line(text, "| deployed, T 16, 128², B 1, float32")
    assert line(text, "| deployed, T 16, 128², B 1, bfloat16").endswith("| must |")
    assert "took more than" in line(text, "| 34² to 224²")
    assert "not run" in line(text, "| training step, N-MNIST")
    assert "not in the document" in line(text, "| deployed, T 16, 128², B 64, bfloat16")
    assert json.loads((tmp_path / "a.json").read_text()).keys() == {"infer float32", "infer bfloat16", "scan"}
