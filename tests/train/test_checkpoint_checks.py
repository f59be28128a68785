"""A checkpoint that this run could not have written is skipped for the one before it, with one log line."""

import json
import math
import shutil

import msgspec
import pytest
import torch
from safetensors.torch import save

from raising import raises
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.train.callback import TrainingStopped
from ripe_mambaspike.train.checkpoint import checkpoint_digest, last_checkpoint
from ripe_mambaspike.train.checkpoint_checks import check_checkpoint
from ripe_mambaspike.train.training_run import TrainingRun

NEWEST, BEFORE = (5, 1), (4, 1)  # steps and epochs of the two checkpoints that are there
MISSING = object()


@pytest.fixture(scope="module")
def stopped(tiny, go, watching, tmp_path_factory):
    """A run that was stopped after the fifth of its six steps, with a checkpoint after every one."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    callback = watching()
    with pytest.raises(TrainingStopped):
        go(
            tiny("run.checkpoint_minutes=0"), folder, callback,
            stop_requested=lambda: callback.trainer.state.global_step == NEWEST[0],
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def waiting(stopped, tiny):
    """A run that could go on from there."""
    return TrainingRun(tiny(), stopped)


@pytest.fixture
def copy(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


def rewritten(folder, change):
    """The newest checkpoint with other tensors or another document, under a checksum that is right."""
    found = last_checkpoint(folder / "checkpoints")
    values = msgspec.to_builtins(found.document)
    change(values, found.tensors)
    write(folder / "checkpoints", values, found.tensors)


def write(folder, values, tensors, point=NEWEST):
    """As `save_checkpoint`, of a document that is not checked."""
    text = json.dumps(values)
    name = "step-{:09d}-{:09d}.safetensors".format(*point)
    (folder / name).write_bytes(save(tensors, {"ripe": text, "sha256": checkpoint_digest(text, tensors)}))


def set_entry(name, value):
    def change(values, _):
        *above, last = name.split(".")
        for step in above:
            values = values[int(step)] if step.isdecimal() else values[step]
        if value is MISSING:
            del values[last]
        else:
            values[int(last) if last.isdecimal() else last] = value

    return change


WRONG = [
    ("state", MISSING), ("state", None), ("state", []), ("state", {}), ("state", 3),
    ("state.epoch", 3), ("state.epoch", -1), ("state.epoch", 1.0), ("state.epoch", True), ("state.epoch", "1"),
    ("state.epoch", 0), ("state.epoch", 2), ("state.epoch", MISSING), ("state.batch", MISSING),
    ("state.global_step", MISSING), ("state.clips", MISSING), ("state.seconds", MISSING),
    ("state.batch", 1), ("state.batch", 3), ("state.batch", 4), ("state.batch", 10**30), ("state.batch", None),
    ("state.global_step", 4), ("state.global_step", 6), ("state.global_step", -5), ("state.global_step", [5]),
    ("state.clips", 7), ("state.clips", 0), ("state.clips", 12), ("state.clips", math.nan),
    ("state.seconds", -1.0), ("state.seconds", math.nan), ("state.seconds", math.inf), ("state.seconds", "now"),
    ("state.more", 1),
    ("seconds", MISSING), ("seconds", -3.0), ("seconds", math.nan), ("seconds", {}),
    ("threads", MISSING), ("threads", 0), ("threads", 10**6), ("threads", True), ("threads", 1.0),
    ("processes", 0), ("processes", "2"), ("processes", -1),
    ("store", MISSING), ("store", None), ("store", 4), ("store", ""),
    ("rows", MISSING), ("rows", None), ("rows", []), ("rows", {}), ("rows", [None]), ("rows", "x"), ("rows", [{}, {}]),
    ("rows.0.epoch", 2), ("rows.0.epoch", MISSING), ("rows.0.loss", "low"), ("rows.0.loss", [1]), ("rows.0.lr", True),
    ("best", MISSING), ("best", 1), ("best", []), ("best", {}), ("best.epoch", 0), ("best.epoch", 2),
    ("best.epoch", "1"), ("best.score", 1.0), ("best.score", [1.0]), ("best.score", ["a", "b"]),
    ("best.score", [math.nan, 0.0]), ("best.score", [0.5, math.nan]), ("best.score", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}={str(value)[:12]}" for name, value in WRONG])
def test_an_entry_that_is_wrong(stopped, waiting, tmp_path, caplog, name, value):
    """By itself; in a run see `test_a_wrong_checkpoint_is_skipped_and_the_run_ends_the_same`."""
    found = last_checkpoint(stopped / "checkpoints")
    check_checkpoint(found, waiting.trainer, waiting.data.store.key)
    values = msgspec.to_builtins(found.document)
    set_entry(name, value)(values, None)
    write(tmp_path, values, {"x": torch.zeros(1)})
    with pytest.raises(DataError):
        last_checkpoint(tmp_path, lambda one: check_checkpoint(found._replace(document=one.document), waiting.trainer,
                                                               waiting.data.store.key))  # fmt: skip
    (line,) = caplog.messages
    reason = line.removeprefix(str(tmp_path))
    named = "rows" if name == "state.epoch" and value in (0, 2) else name.split(".")[0]  # other rows than epochs
    assert named in reason
    assert len(reason) < 400
    assert "\n" not in line


def dropped(name):
    return lambda _, tensors: tensors.pop(next(one for one in tensors if one.startswith(name)))


def filled(name, value):
    return lambda _, tensors: tensors[name].fill_(value)


def reshaped(name):
    def change(_, tensors):
        tensors[name] = tensors[name].reshape(-1, 1).clone()

    return change


def retyped(name):
    def change(_, tensors):
        tensors[name] = tensors[name].double()

    return change


def added(_, tensors):
    tensors["model.more"] = torch.zeros(1)


TENSORS = {
    "a weight missing": dropped("model."),
    "one of the optimizer missing": dropped("optimizer.3.exp_avg_sq"),
    "the sums missing": dropped("sums"),
    "one too many": added,
    "NaN in a weight": filled("model.head.weight", math.nan),
    "Inf in the optimizer": filled("optimizer.0.exp_avg", math.inf),
    "below zero": filled("optimizer.0.exp_avg_sq", -1.0),
    "steps below zero": filled("optimizer.0.step", -1.0),
    "NaN in the sums": filled("sums", math.nan),
    "another shape": reshaped("model.head.weight"),
    "another shape in the optimizer": reshaped("optimizer.0.exp_avg"),
    "another type": retyped("model.head.weight"),
}


@pytest.mark.parametrize("change", TENSORS.values(), ids=TENSORS)
def test_a_checkpoint_with_a_wrong_tensor_is_skipped(copy, waiting, monkeypatch, caplog, change):
    rewritten(copy, change)
    monkeypatch.setattr(waiting, "folder", copy)
    assert waiting.resume()
    (line,) = caplog.messages
    assert "step-{:09d}-{:09d}".format(*NEWEST) in line
    assert waiting.trainer.state.global_step == BEFORE[0]


def test_a_wrong_checkpoint_is_skipped_and_the_run_ends_the_same(copy, finished, tiny, go, outcome, caplog):
    rewritten(copy, set_entry("state.batch", 3))
    go(tiny(), copy, resume=True)
    assert "state.global_step" in caplog.text
    assert outcome(copy) == outcome(finished)


def test_all_checkpoints_wrong(copy, tiny, go):
    found = last_checkpoint(copy / "checkpoints")
    values = {**msgspec.to_builtins(found.document), "rows": None}
    for point in (BEFORE, NEWEST):
        write(copy / "checkpoints", values, found.tensors, point)
    with raises(DataError, path=copy / "checkpoints"):
        go(tiny(), copy, resume=True)
    assert not (copy / "result.json").exists()


def test_a_nan_loss_in_the_log_is_allowed(stopped, waiting, tmp_path):
    """Validation can end in one, which selects nothing."""
    found = last_checkpoint(stopped / "checkpoints")
    values = msgspec.to_builtins(found.document)
    values["rows"][0]["val_loss"], values["best"]["score"] = math.nan, [0.0, -math.inf]
    write(tmp_path, values, found.tensors)
    check_checkpoint(last_checkpoint(tmp_path), waiting.trainer, waiting.data.store.key)
