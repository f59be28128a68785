"""`ripe train`: what it prints, interrupted and killed from outside, and what it cannot use."""

import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import pytest

from ripe_mambaspike.cli.main import main
from ripe_mambaspike.cli.train import ProgressCallback, complete_resume, gather_settings
from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.train.recipes import load_recipe
from ripe_mambaspike.train.run_folder import chosen_folder

FIELDS = {
    "name": "tiny",
    "data.time_steps": "4",
    "data.grid": "16",
    "model.fields": "{stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}",
    "schedule.batch_size": "4",
    "schedule.epochs": "2",
    "optimizer.min_learning_rate": "1e-4",
    "run.recalibrate_batches": "2",
    "run.device": "cpu",
}
TIMED = ("seconds", "samples_per_second", "memory_mib")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gestures")
    simulate_dataset("synthgesture", folder, train=11, val=3, test=3, size=16)
    return folder


@pytest.fixture(scope="module")
def words(root):
    """Folder and settings → the command's words."""

    def make(folder, *more, **changed):
        fields = {"data.root": root, **FIELDS, **{name.replace("__", "."): value for name, value in changed.items()}}
        return ["train", "synthgesture", "--out", str(folder), *more, "--set", *(f"{k}={v}" for k, v in fields.items())]

    return make


@pytest.fixture(scope="module")
def told(words, tmp_path_factory):
    """A run that was never stopped, with its report; its folder and what it printed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main(words(folder)) == 0
    return folder, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def whole(told):
    return told[0]


def outcome(folder):
    with (folder / "log.csv").open(newline="") as file:
        log = [{name: cell for name, cell in row.items() if name not in TIMED} for row in csv.DictReader(file)]
    result = {**json.loads((folder / "result.json").read_text()), "seconds": None}
    return (folder / "best" / "model.safetensors").read_bytes(), log, result


def digests(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path: (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns) for path in files}


def interrupted(words, folder, kind, seen):
    """Start the command as a process of its own, signal it when the file is there; exit code and standard error."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ripe_mambaspike", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 120
    while not (folder / seen).exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"{seen} did not come"
        time.sleep(0.005)
    process.send_signal(kind)
    out, err = process.communicate(timeout=120)
    assert out == ""
    return process.returncode, err


FIRST = "checkpoints/step-000000001-000000000.safetensors"


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(ripe, words, whole, tmp_path):
    folder = tmp_path / "run"
    code, _ = interrupted(words(folder, run__checkpoint_minutes=0), folder, signal.SIGKILL, FIRST)
    assert code == -signal.SIGKILL
    assert not (folder / "result.json").exists()
    result = ripe(*words(folder, "--resume", "auto", "--no-report"))
    assert result.code == 0
    assert "resuming at epoch " in result.err
    assert outcome(folder) == outcome(whole)


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_bits(ripe, words, whole, tmp_path):
    folder = tmp_path / "run"
    code, err = interrupted(words(folder, run__checkpoint_minutes=0), folder, signal.SIGINT, FIRST)
    assert code == 130
    assert "Traceback" not in err
    assert "stopping" in err.splitlines()[-2]
    assert str(folder) in err.splitlines()[-1]
    assert "--resume auto" in err.splitlines()[-1]
    assert not (folder / "result.json").exists()
    assert len(list((folder / "checkpoints").glob("step-*.safetensors"))) in (1, 2)
    result = ripe(*words(folder, "--resume", "auto", "--no-report"))
    assert result.code == 0
    assert "resuming at epoch " in result.err
    assert outcome(folder) == outcome(whole)


def signalled(monkeypatch, kind, times):
    """The process gets a signal in its second step, once or more often."""
    real, steps = ProgressCallback.on_step_end, []

    def on_step_end(self, trainer):
        real(self, trainer)
        steps.append(1)
        for _ in range(times if len(steps) == 2 else 0):
            signal.raise_signal(kind)

    monkeypatch.setattr(ProgressCallback, "on_step_end", on_step_end)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM], ids=lambda kind: kind.name)
def test_a_signal_stops_after_the_step(ripe, words, tmp_path, monkeypatch, kind):
    folder, before = tmp_path / "run", signal.getsignal(kind)
    signalled(monkeypatch, kind, 1)
    result = ripe(*words(folder))
    assert result.code == 130
    assert result.out == ""
    assert len(result.err.splitlines()) == 3  # the beginning, the signal, where it is saved
    assert "stopping" in result.err.splitlines()[-2]
    assert str(folder) in result.err.splitlines()[-1]
    assert "--resume auto" in result.err.splitlines()[-1]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000000002-000000000.safetensors"]
    assert signal.getsignal(kind) == before


def test_a_second_signal_stops_at_once(ripe, words, tmp_path, monkeypatch):
    signalled(monkeypatch, signal.SIGINT, 2)
    result = ripe(*words(tmp_path / "run"))
    assert result.code == 130
    assert "Traceback" not in result.err
    assert "stopped;" not in result.err
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_what_is_printed(told):
    folder, out, err = told
    result = json.loads((folder / "result.json").read_text())
    first, one, two = err.splitlines()
    assert first.startswith(f"tiny: synthgesture (people, store {result['store']}), train 11, val 3, test 3; ")
    assert first.endswith(" parameters on cpu")
    assert one.startswith("epoch 1/2  loss ")
    assert two.startswith("epoch 2/2  loss ")
    text = " ".join(out.split())
    assert f"top-1 {100 * result['top1']:.2f} % of 3 synthgesture test clips; epoch {result['epoch']}" in text
    assert "selected on validation clips" in text
    assert (folder / "report.html").stat().st_size > 1000


def test_the_paper_protocol_says_so(ripe, words, tmp_path):
    printed = ripe(*words(tmp_path / "run", "--no-report", "--protocol", "paper", schedule__batch_size=14))
    assert printed.code == 0
    assert "train 14, val 0, test 3;" in printed.err
    assert "paper protocol" in printed.err
    assert all("  test " in line and "  val " not in line for line in printed.err.splitlines() if "epoch " in line[:6])
    label = "best test epoch: selected on the test clips (paper protocol)"
    assert label in " ".join(printed.out.split())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["protocol"], result["picked_on"]) == ("paper", "test")
    assert result["clips"] == {"train": 14, "val": 0, "test": 3}
    evaluated = ripe("eval", tmp_path / "run", "--device", "cpu")
    assert label in " ".join(evaluated.out.split())
    assert label not in ripe("eval", tmp_path / "run", "--device", "cpu", "--split", "train").out
    assert json.loads(ripe("eval", tmp_path / "run", "--device", "cpu", "--json").out)["selected_on_test"] is True
    again = ripe("train", str(tmp_path / "run" / "recipe.yaml"), "--out", str(tmp_path / "run"), "--resume", "--json")
    assert json.loads(again.out) == result


def test_short_options_set_fields_of_the_recipe(ripe, refused, words, tmp_path):
    short = ["--epochs", "1", "--batch-size", "5", "--grid", "18"]
    fields = ("schedule.epochs=", "schedule.batch_size=", "data.grid=")
    others = [word for word in words(tmp_path / "run", "--no-report") if not word.startswith(fields)]
    assert ripe(others[0], *short, *others[1:]).code == 0
    recipe = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert (recipe.schedule.epochs, recipe.schedule.batch_size, recipe.data.grid) == (1, 5, (18, 18))
    refused(words(tmp_path / "other", "--epochs", "3"), "schedule.epochs")  # set twice
    refused([*others, "--epochs", "0"], "schedule.epochs", "0")
    refused([*others, "--batch-size", "many"], "--batch-size", "many")
    assert not (tmp_path / "other").exists()


def test_the_protocol_is_chosen_once(refused, words, tmp_path):
    refused(words(tmp_path / "run", "--protocol", "paper", run__protocol="paper"), "run.protocol")
    refused(words(tmp_path / "run", "--protocol", "best"), "--protocol")
    assert not (tmp_path / "run").exists()


def test_json(ripe, words, tmp_path):
    result = ripe(*words(tmp_path / "run", "--json", "--no-report", schedule__batch_size=11))
    assert result.code == 0
    assert json.loads(result.out) == json.loads((tmp_path / "run" / "result.json").read_text())
    assert result.err == ""
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.fixture
def unnamed(words, tmp_path, monkeypatch):
    """The words of a short run without --out."""
    monkeypatch.chdir(tmp_path)

    def make(*more, **changed):
        given = words("x", "--no-report", *more, **{"schedule__batch_size": 11, "schedule__epochs": 1, **changed})
        return [word for word in given if word not in ("--out", "x")]

    return make


def test_runs_without_a_folder_are_numbered(ripe, refused, unnamed, tmp_path):
    runs = tmp_path / "runs"
    for number in (1, 2):
        result = ripe(*unnamed("--json"))
        assert result.code == 0
        assert (runs / f"tiny-{number}" / "result.json").exists()
        assert result.err == f"run folder runs/tiny-{number}\n"
    (runs / "tiny-7").mkdir()
    assert ripe(*unnamed()).code == 0
    assert (runs / "tiny-8" / "result.json").exists()
    refused(unnamed("--resume"), "--resume", "runs/tiny-8")  # all have ended
    refused(unnamed(data__root="nowhere"), "nowhere")
    assert sorted(path.name for path in runs.iterdir()) == ["tiny-1", "tiny-2", "tiny-7", "tiny-8"]


def test_resuming_without_a_folder_takes_the_newest_unfinished_run(ripe, unnamed, tmp_path):
    runs = tmp_path / "runs"
    assert ripe(*unnamed("--resume")).code == 0  # none is there yet: a new one
    assert [ripe(*unnamed()).code for _ in range(2)] == [0, 0]
    for name in ("tiny-1", "tiny-2"):
        (runs / name / "result.json").unlink()
    (runs / "tiny-10").mkdir()  # nothing was begun there
    result = ripe(*unnamed("--resume"))
    assert result.code == 0
    assert "run folder runs/tiny-2" in result.err.splitlines()
    assert (runs / "tiny-2" / "result.json").exists()
    assert not (runs / "tiny-1" / "result.json").exists()
    (runs / "tiny-1").rename(runs / "tiny")  # as earlier versions called it
    assert ripe(*unnamed("--resume")).code == 0
    assert (runs / "tiny" / "result.json").exists()


def test_two_processes_never_share_a_numbered_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = replace(load_recipe("synthgesture"), name="tiny")
    start = threading.Barrier(8)

    def choose(_):
        start.wait()
        with chosen_folder(None, recipe, recipe, resume=False) as folder:
            (folder / "mine").write_text("x")
            return folder

    with ThreadPoolExecutor(8) as pool:
        chosen = list(pool.map(choose, range(8)))
    assert sorted(path.name for path in chosen) == [f"tiny-{number}" for number in range(1, 9)]


def test_a_place_where_no_folder_can_be_made(refused, unnamed, tmp_path):
    (tmp_path / "runs").write_text("mine")
    refused(unnamed(), "runs", "folder")
    assert (tmp_path / "runs").read_text() == "mine"


def test_a_second_run_is_refused(refused, words, whole):
    before = digests(whole)
    refused(words(whole), whole, "--resume auto", "--out")
    assert digests(whole) == before


def test_another_recipe_is_refused(refused, words, whole):
    before = digests(whole)
    refused(words(whole, "--resume", "auto", optimizer__learning_rate="0.5"), whole, "optimizer.learning_rate")
    assert digests(whole) == before


def test_a_finished_run_is_not_changed(ripe, words, whole):
    """Nothing is written anew, but for the report where one is asked for."""
    before = digests(whole)
    result = ripe(*words(whole, "--resume", "auto", "--no-report", run__checkpoint_minutes=0))
    assert result.code == 0
    assert result.err == f"{whole}: the run has already finished; this is its result\n"
    assert "top-1" in result.out
    assert digests(whole) == before


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["synthgestur"], ["synthgestur", "synthgesture"]),
        (["none.yaml"], ["none.yaml"]),
        (["synthgesture", "--set", "schedule.epoch=3"], ["schedule.epoch", "schedule.epochs"]),
        (["synthgesture", "--set", "schedule.epochs=soon"], ["schedule.epochs", "soon"]),
        (["synthgesture", "--set", "schedule.epochs=0"], ["schedule.epochs", "1", "0"]),
        (["synthgesture", "--set", "schedule.epochs"], ["schedule.epochs"]),
        (["synthgesture", "--set", "run.ema_decay=1"], ["run.ema_decay"]),
        (["synthgesture", "--set", "model.fields={attention: much}"], ["model.fields", "attention"]),
        (["synthgesture", "--set", "model.name=mamba_spike"], ["model.name"]),
        (["synthgesture", "--resume", "perhaps"], ["--resume", "perhaps"]),
        (["synthgesture", "--set", "data.root=nowhere"], ["nowhere", "ripe sim make synthgesture"]),
        (["sim-cifar10"], ["data/sim-cifar10", "ripe sim make sim-cifar10", "--images"]),
        (["dvsgesture"], ["data/dvsgesture", "ripe data prepare dvsgesture"]),
        ([], ["RECIPE"]),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else None,
)
def test_invalid_options_are_refused(refused, tmp_path, monkeypatch, given, named):
    monkeypatch.chdir(tmp_path)
    refused(["train", *given], *named)
    assert not list(tmp_path.rglob("recipe.yaml"))


def test_a_folder_that_is_a_file(refused, words, tmp_path):
    (tmp_path / "run").write_text("mine")
    refused(words(tmp_path / "run"), tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_missing_device_is_refused(refused, words, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    refused(words(tmp_path / "run", run__device="cuda"), "run.device", "cpu or auto", "cuda")


def test_a_cache_on_a_missing_device_is_refused(ripe, words, tmp_path):
    result = ripe(*words(tmp_path / "run", data__cache="device"))
    assert result.code == 2
    (line,) = result.err.splitlines()[1:]
    assert line.startswith("ripe: data.cache: ")
    assert all(choice in line for choice in ("auto", "memory", "off", "device"))


@pytest.mark.parametrize("fields", [{"data__fold": 1}, {"data__folds": 1}, {"data__extra": "[synthgesture]"}])
def test_invalid_data_is_refused(refused, words, tmp_path, fields):
    refused(words(tmp_path / "run", **fields), next(iter(fields)).replace("__", "."))


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ("train x --set a.b=1 c.d=2 --json --set e.f=3", ["a.b=1", "c.d=2", "e.f=3"]),
        ("train x --schedule.epochs 3 --data.grid 34 48 --json", ["schedule.epochs=3", "data.grid=[34, 48]"]),
        ("train x --run.ema-decay=0.5 --set a.b=1 --json", ["run.ema_decay=0.5", "a.b=1"]),
        ("train x --optimizer.min-learning-rate -1 --json", ["optimizer.min_learning_rate=-1"]),
    ],
)
def test_fields_of_a_recipe_as_options(given, settings):
    assert gather_settings(given.split()) == ["train", "x", "--json", "--set", *settings]
    assert gather_settings(["train", "x"]) == ["train", "x"]


def test_the_report_is_written_again(ripe, whole, root, tmp_path, refused):
    first = (whole / "report.html").read_text()
    (whole / "report.html").unlink()
    assert ripe("report", whole) == (0, f"report {whole / 'report.html'}\n", "")
    assert (whole / "report.html").read_text() == first
    assert first.count('<article class="card sample">') == 3  # all test clips
    assert ripe("report", whole, "--samples", "1").code == 0
    assert (whole / "report.html").read_text().count('<article class="card sample">') == 1
    refused(("report", whole, "--samples", "-1"), "--samples", "-1")
    refused(("report", tmp_path), tmp_path, "recipe.yaml")
    assert ripe("report", whole, "--root", tmp_path).code == 0  # without the data no clips are shown
    assert '<article class="card sample">' not in (whole / "report.html").read_text()
    (whole / "report.html").write_text(first)


def test_resume_without_a_value_is_auto():
    assert complete_resume(["train", "x", "--resume"]) == ["train", "x", "--resume", "auto"]
    assert complete_resume(["train", "x", "--resume", "--json"]) == ["train", "x", "--resume", "auto", "--json"]
    assert complete_resume(["train", "x", "--resume", "off"]) == ["train", "x", "--resume", "off"]
