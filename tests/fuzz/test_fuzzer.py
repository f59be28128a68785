"""The fuzzer detects each kind of finding, a short run finds nothing, and earlier findings stay fixed."""

import contextlib
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random

import pytest
from fuzz.child import Session
from fuzz.engine import STATUS, STATUS_FILE
from fuzz.mutate import mutate, mutate_document
from fuzz.target import Target
from fuzz.targets import find_target, target_names

ROOT = Path(__file__).parents[2]
EXPORTS = "export-folder"  # its seeds are exported first, which takes long
CASES = [
    pytest.param(path, id=f"{path.parent.name}/{path.name}", marks=[pytest.mark.slow] * (path.parent.name == EXPORTS))
    for path in sorted((ROOT / "fuzz" / "cases").glob("*/*"))
]


@pytest.mark.parametrize("path", CASES)
def test_earlier_findings_stay_fixed(path, tmp_path):
    target = find_target(path.parent.name)
    with warnings.catch_warnings(), contextlib.suppress(*target.allowed):
        warnings.simplefilter("ignore")
        target.run(path.read_bytes(), tmp_path)


def test_mutations_are_a_function_of_the_seed():
    seed = bytes(range(200))
    made = [[mutate(seed, Random(number), [seed[::-1]], [b"word"]) for number in range(100)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 90
    documents = [mutate_document({"a": [1, {"b": "c"}], "d": None}, Random(number)) for number in range(100)]
    assert len(set(map(repr, documents))) > 50


def child(tmp_path, run):
    (tmp_path / STATUS_FILE).write_bytes(bytes(STATUS.size))
    return Session(Target("toy", "others", [b"x"], run, allowed=(ValueError,)), tmp_path)


def test_exceptions_that_are_not_allowed_are_written_down_once(tmp_path):
    def run(case, folder):
        raise {b"a": ValueError, b"b": KeyError, b"c": MemoryError}[case]("oops")

    session = child(tmp_path, run)
    for case in (b"a", b"b", b"b", b"c"):
        session.run(case)
    kinds = sorted(path.name for path in (tmp_path / "findings").glob("*.json"))
    assert session.cases == 4
    assert len(kinds) == 2  # of the KeyError and of the MemoryError


def test_every_target_takes_its_own_seeds(tmp_path):
    """What is valid is not refused: a target whose seeds are would only ever try the first check."""
    for name, group in target_names().items():
        if group == "readers":
            target = find_target(name)
            for seed in target.seeds:
                target.run(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, group in target_names().items() if group == "others"])
def test_other_targets_take_their_seeds(name, tmp_path):
    """Some are refused on purpose (links in an archive, a value of another kind), never all."""
    target = find_target(name)
    taken = 0
    for seed in target.seeds:
        with contextlib.suppress(*target.allowed):
            target.run(seed, tmp_path)
            taken += 1
    assert taken


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [("hang", "time.sleep(60)"), ("abort", "os.abort()")])
def test_hangs_and_aborts_are_noticed(kind, code, tmp_path, monkeypatch):
    from fuzz import engine

    (tmp_path / "fuzz_stub.py").write_text(
        "import os, sys, time\nfrom fuzz import child, targets\nfrom fuzz.target import Target\n"
        f"def run(case, folder):\n    if case != b'seed': {code}\n"
        "targets.find_target = lambda name: Target(name, 'others', [b'seed'], run)\n"
        "raise SystemExit(child.main(sys.argv[1:]))\n"
    )
    begin = subprocess.Popen

    def started(command, **how):
        return begin([command[0], str(tmp_path / "fuzz_stub.py"), *command[3:]], **how)

    monkeypatch.setattr(engine.subprocess, "Popen", started)
    monkeypatch.setattr(engine, "MAX_SECONDS", 1.0)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    outcome = engine.fuzz("toy", "others", cases=10, seconds=30, seed=0, most_findings=1)
    assert [finding["kind"] for finding in outcome.findings] == [kind]
    assert Path(outcome.findings[0]["case"]).exists()


@pytest.mark.slow
def test_a_short_run_finds_nothing(tmp_path):
    command = [sys.executable, "-m", "fuzz", "--seconds", "60", "--json", str(tmp_path / "outcome.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "readers:" in done.stdout
    assert "others:" in done.stdout
