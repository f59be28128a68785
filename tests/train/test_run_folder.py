"""A run's folder: one run at a time, what killed and stopped runs leave there, threads, and damaged files."""

import errno
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest
import torch

from raising import raises
from ripe_mambaspike import load, predict
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.errors import DataError, RipeError, WeightsError
from ripe_mambaspike.events.recording import Recording, RecordingWarning, make_events
from ripe_mambaspike.files import locked
from ripe_mambaspike.models import labels
from ripe_mambaspike.models.labels import find_checkpoint, read_labels
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.train import training_run as run
from ripe_mambaspike.train.callback import TrainingStopped
from ripe_mambaspike.train.checkpoint import last_checkpoint
from ripe_mambaspike.train.trainer import NotFiniteError

LAST_EPOCH = ("data.validation=false",)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def told_once():
    labels._warn_once.cache_clear()


# One at a time.


def test_a_second_run_in_a_folder_is_refused(tiny, go, watching, tmp_path):
    refused = []

    def second(trainer):
        before = contents(tmp_path / "run")
        for resume in (False, True):
            with raises(DataError, path=tmp_path / "run" / ".lock") as caught:
                go(tiny("run.seed=1"), tmp_path / "run", resume=resume)
            refused.append(str(caught.value))
        assert contents(tmp_path / "run") == before

    go(tiny("schedule.epochs=1"), tmp_path / "run", watching(on_step=second))
    assert len(refused) == 6
    assert str(tmp_path / "run") in refused[0]
    assert not (tmp_path / "run" / ".lock").exists()


def test_the_command_reports_a_locked_folder_in_one_line(tiny_words, capsys, tmp_path):
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run" / ".lock", "held"):
        assert main([*tiny_words(), "--out", str(tmp_path / "run")]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert str(tmp_path / "run") in printed


def test_reading_needs_no_lock(finished, gestures, capsys, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    with locked(tmp_path / "run" / ".lock", "held"):
        assert main(["eval", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["top1"] == json.loads((finished / "result.json").read_text())["top1"]


@pytest.mark.slow
def test_a_dead_run_holds_no_lock(tiny_words, tiny, go, outcome, finished, tmp_path):
    words = [*tiny_words("run.checkpoint_minutes=0"), "--out", str(tmp_path / "run")]
    with subprocess.Popen(
        [sys.executable, "-m", "ripe_mambaspike", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    ) as other:
        end = time.monotonic() + 120
        while not (tmp_path / "run" / "checkpoints").exists():
            assert time.monotonic() < end
            assert other.poll() is None
            time.sleep(0.005)
        other.send_signal(signal.SIGSTOP)
        with pytest.raises(DataError):
            go(tiny(), tmp_path / "run", resume=True)
        other.kill()
    go(tiny(), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_file_system_without_locks_is_reported(tiny, go, monkeypatch, caplog, tmp_path):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    go(tiny("schedule.epochs=1"), tmp_path / "run")
    assert (tmp_path / "run" / "result.json").exists()
    assert any(str(tmp_path / "run" / ".lock") in line for line in caplog.messages)


# What killed runs leave.


def test_temporary_files_of_killed_runs_are_removed(finished, tiny, go, outcome, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "result.json").unlink()
    left = [
        "checkpoints/.step-000000006-000000002.safetensors.ab12cd34",
        ".log.csv.abcdefgh",
        ".result.json.abcdefg_",
        "best/.model.safetensors.4711.tmp",
        "best/.labels.json.12345678",
    ]
    mine = ["checkpoints/.notes.abcdefgh", ".recipe.yaml.swp", "best/.config.json.backup-1"]
    for name in left + mine:
        (folder / name).write_text("half")
    (folder / ".best.abcdefgh").mkdir()
    (folder / ".best.abcdefgh" / "config.json").write_text("half")
    go(tiny(), folder, resume=True)
    assert not [name for name in left if (folder / name).exists()]
    assert not (folder / ".best.abcdefgh").exists()
    assert [name for name in mine if (folder / name).exists()] == mine
    for name in mine:
        (folder / name).unlink()
    assert outcome(folder) == outcome(finished)


# A run that stops leaves a network.


def stop_after(steps):
    """Is asked after every step."""
    count = itertools.count(1)
    return lambda: next(count) == steps


@pytest.mark.parametrize(("steps", "epochs"), [(1, 0), (7, 1)])
def test_a_stopped_run_has_a_network(tiny, go, gestures, caplog, capsys, tmp_path, steps, epochs):
    folder = tmp_path / "run"
    with pytest.raises(TrainingStopped):
        go(tiny(*LAST_EPOCH), folder, stop_requested=stop_after(steps))
    assert not (folder / "best").exists()
    assert sorted(path.name for path in (folder / "last").iterdir()) == [
        "config.json",
        "labels.json",
        "model.safetensors",
    ]
    assert find_checkpoint(folder) == folder / "last"
    (line,) = caplog.messages
    assert str(folder) in line
    assert f"{epochs} epochs" in line
    assert read_labels(folder / "last").epoch == epochs
    model, state = from_pretrained(folder / "last"), last_checkpoint(folder / "checkpoints").tensors
    assert torch.equal(model.head.weight, state["model.head.weight"])
    statistics = {name: value for name, value in model.state_dict().items() if "running_mean" in name}
    assert statistics
    assert not any(torch.equal(value, state[f"model.{name}"]) for name, value in statistics.items())  # estimated anew
    assert main(["eval", str(folder), "--json"]) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["top1"] <= 1
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize("stops", [(1, 3), pytest.param((1, 1, 2, 1), marks=pytest.mark.slow)])
def test_a_stopped_run_resumes_to_the_same_result(tiny, go, outcome, tmp_path, stops):
    recipe = tiny(*LAST_EPOCH, "run.ema_decay=0.5")
    go(recipe, tmp_path / "whole")
    for steps in stops:
        with pytest.raises(TrainingStopped):
            go(recipe, tmp_path / "run", resume=True, stop_requested=stop_after(steps))
        assert (tmp_path / "run" / "last").is_dir()
    go(recipe, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    assert contents(tmp_path / "run" / "last") == contents(tmp_path / "whole" / "last")
    assert find_checkpoint(tmp_path / "run") == tmp_path / "run" / "best"


def test_a_stopped_run_keeps_its_selected_network(tiny, go, caplog, tmp_path):
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", stop_requested=stop_after(4))
    weights, state = (
        from_pretrained(tmp_path / "run" / "last").head.weight,
        last_checkpoint(tmp_path / "run" / "checkpoints"),
    )
    assert torch.equal(weights, state.tensors["model.head.weight"])  # of step 4, where best/ has that of step 3
    assert not torch.equal(weights, from_pretrained(tmp_path / "run" / "best").head.weight)
    assert find_checkpoint(tmp_path / "run") == tmp_path / "run" / "best"
    assert "1 epochs" in caplog.text


def test_a_finished_run_is_loaded_without_a_warning(finished, caplog):
    assert find_checkpoint(finished) == finished / "best"
    assert caplog.messages == []


def test_a_run_that_fails_has_a_network(tiny, go, monkeypatch, tmp_path):
    real, calls = run.Trainer._augmented, []

    def bad(self, x, y, index):
        calls.append(1)
        x, y = real(self, x, y, index)
        return (x * float("nan") if len(calls) == 3 else x), y

    monkeypatch.setattr(run.Trainer, "_augmented", bad)
    with pytest.raises(NotFiniteError):
        go(tiny(*LAST_EPOCH), tmp_path / "run")
    assert torch.isfinite(from_pretrained(tmp_path / "run" / "last").head.weight).all()


def test_a_network_that_is_not_finite_is_not_kept(tiny, go, watching, tmp_path):
    def spoil(trainer):
        with torch.no_grad():
            trainer.model.head.weight.fill_(float("nan"))

    with pytest.raises(NotFiniteError):
        go(tiny(*LAST_EPOCH), tmp_path / "run", watching(on_step=spoil))
    assert not (tmp_path / "run" / "last").exists()


def test_a_full_disk_for_the_unfinished_network_is_only_logged(tiny, go, monkeypatch, caplog, tmp_path):
    def full(*_, **__):
        raise WeightsError("there is no room; more is wanted")

    monkeypatch.setattr(run, "save_pretrained", full)
    with pytest.raises(TrainingStopped):
        go(tiny(*LAST_EPOCH), tmp_path / "run", stop_requested=stop_after(1))
    assert "no room" in caplog.text
    assert last_checkpoint(tmp_path / "run" / "checkpoints") is not None
    assert not (tmp_path / "run" / "last").exists()


@pytest.mark.parametrize(
    "how", [(), ("run.validate_every=2", "run.ema_decay=0.5"), LAST_EPOCH], ids=["", "second", "last"]
)
def test_last_is_a_whole_network_after_every_epoch(tiny, go, watching, tmp_path, how):
    """Beside best/, during the run and after it; what it is after an epoch does not depend on validation."""
    folder, seen = tmp_path / "run", []

    def look(trainer):
        model = from_pretrained(folder / "last")
        seen.append(read_labels(folder / "last").epoch)
        with trainer.average.swapped_in() if trainer.average else nullcontext():
            wanted = dict(trainer.model.named_parameters())
            assert all(torch.equal(value, wanted[name]) for name, value in model.named_parameters())
        assert (folder / "best").exists() == (not how or seen[-1] % 2 == 0)

    go(tiny(*how), folder, watching(on_epoch=look))
    assert seen == [1, 2]
    assert sorted(contents(folder / "last")) == ["config.json", "labels.json", "model.safetensors"]
    assert read_labels(folder / "last").epoch == 2
    clip = Recording(make_events([1, 9, 3, 4], [2, 3, 15, 0], [0, 10, 20, 30], [0, 1, 0, 1]), (16, 16))
    with pytest.warns(RecordingWarning):  # it is far too short
        assert predict(load(folder / "last"), clip).label in load(folder).class_names


# Threads.


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_run_resumes_with_its_number_of_threads(tiny, go, watching, outcome, finished, two_threads, tmp_path):
    torch.set_num_threads(1)
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", stop_requested=stop_after(2))
    assert last_checkpoint(tmp_path / "run" / "checkpoints").document.threads == 1
    torch.set_num_threads(2)
    seen = []
    callback = watching(on_step=lambda _: seen.append(torch.get_num_threads()))
    result = go(tiny(), tmp_path / "run", callback, resume=True)
    assert set(seen) == {1}
    assert result["threads"] == 1
    assert any("1 thread" in line and "instead of 2" in line for line in callback.lines)
    assert torch.get_num_threads() == 2  # as before
    assert outcome(tmp_path / "run") == outcome(finished)


def test_the_recipe_sets_the_number_of_threads(tiny, go, watching, tmp_path):
    seen = []
    callback = watching(on_step=lambda _: seen.append(torch.get_num_threads()))
    short = ("schedule.epochs=1", "schedule.batch_size=11", "loss.passes=1")
    result = go(tiny("run.threads=2", *short), tmp_path / "run", callback)
    assert set(seen) == {2}
    assert result["threads"] == 2
    assert torch.get_num_threads() == 1
    with pytest.raises(RipeError):  # and another choice is another recipe
        go(tiny("run.threads=1", *short), tmp_path / "run", resume=True)
    with pytest.raises(RipeError):
        tiny("run.threads=-1")
    with pytest.raises(RipeError):
        tiny("run.threads=100000")


def test_a_different_omp_num_threads_is_reported(tiny, go, two_threads, monkeypatch, caplog, tmp_path):
    torch.set_num_threads(1)
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", stop_requested=stop_after(2))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", resume=True, stop_requested=stop_after(1))
    assert "OMP_NUM_THREADS" in caplog.text


# Damaged files of a run.


def a_pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def sparse(path):
    path.touch()
    os.truncate(path, 1 << 42)


def binary(path):
    path.write_bytes(bytes(range(256)))


def emptied(path):
    path.write_bytes(b"")


def deep(path):
    path.write_text("[" * 100_000)


def a_list(path):
    path.write_text("[]")


def a_folder(path):
    path.unlink(missing_ok=True)
    path.mkdir()


DAMAGES = (a_pipe, sparse, binary, emptied, deep, a_list, a_folder)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["recipe.yaml", "result.json"])
def test_a_damaged_file_is_reported_in_one_line(finished, tiny_words, capsys, tmp_path, name, damage):
    folder = shutil.copytree(finished, tmp_path / "run")
    damage(folder / name)
    assert main([*tiny_words(), "--out", str(folder), "--resume", "auto"]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert name in printed


@pytest.mark.parametrize(
    ("field", "value"),
    [("top1", 2.0), ("n", 0), ("epoch", "1"), ("picked_on", "luck"), ("set", None), ("per_class", {})],
)
def test_a_result_with_a_wrong_entry(finished, tiny, go, tmp_path, field, value):
    folder = shutil.copytree(finished, tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, field: value}))
    with raises(WeightsError, field=field, path=folder / "result.json"):
        go(tiny(), folder, resume=True)


@pytest.mark.parametrize(
    "damage", [a_pipe, binary, *(pytest.param(one, marks=pytest.mark.slow) for one in (sparse, emptied, deep, a_list))]
)
def test_a_damaged_log_is_rewritten(finished, tiny, go, outcome, tmp_path, damage):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "result.json").unlink()
    damage(folder / "log.csv")
    go(tiny(), folder, resume=True)
    assert outcome(folder) == outcome(finished)


def test_a_log_that_is_a_folder(finished, tiny, go, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "result.json").unlink()
    a_folder(folder / "log.csv")
    with pytest.raises(DataError):
        go(tiny(), folder, resume=True)
