"""The results table: measured values beside required ones; a failed command costs only its own rows."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "results_table.py"
MACHINE = {"device": "cuda", "name": "a machine", "torch": "2", "threads": 2, "commit": "abc", "date": "today"}
CELL = {"p95_ms": 9.0, "samples_per_second": 700.0, "peak_mib": 31.0, "activation_mib": 30.0}
CELL |= {"matrix_share": 0.5, "memory_share": 0.25, "times_its_flops": 2.0}


@pytest.fixture(scope="module")
def table():
    spec = importlib.util.spec_from_file_location("results_table", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def infer(milliseconds, agrees=True):
    row = {"precision": "bfloat16", "batch": 1, "agreement": {"agrees": agrees}, "summary": "a summary"}
    row |= {"speedup": 7.0 if agrees else None}
    row |= {"captured": {**CELL, "median_ms": milliseconds}, "reference": {"error": "ran out of memory"}}
    return {
        "bench": "infer",
        "machine": MACHINE,
        "exit_code": int(not agrees),
        "model": "dvsgesture",
        "time_steps": 16,
        "in_size": [128, 128],
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
    assert line(text, "| captured | 1 |").startswith(f"| captured | 1 | {milliseconds}")
    assert "| reference | 1 | – |" in text
    assert "7.00 ×" in line(text, "- batch 1")
    assert "ran out of memory" in line(text, "- batch 1")


def test_compared_with_an_earlier_page(table):
    before, now = ({"infer bfloat16": infer(milliseconds)} for milliseconds in (2.0, 1.0))
    page = "\n".join(table.comparison(now, before, "a page"))
    assert "| infer bfloat16, B 1, captured, ms | 2.000 | 1.000 | 0.500 |" in page
    assert "| infer bfloat16, B 1, captured, activations MiB | 30.00 | 30.00 | 1.000 |" in page
    assert table.comparison(now, {"train": infer(1.0)}, "a page") == []


def test_a_wrong_result_reaches_nothing(table):
    text = table.render({"infer bfloat16": infer(0.1, agrees=False)}, "cuda", None)
    assert line(text, "| deployed, T 16, 128², B 1, bfloat16").endswith("does not agree | no |")
    assert "×" not in line(text, "- batch 1")


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
