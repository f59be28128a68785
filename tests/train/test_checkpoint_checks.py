"""What a checkpoint of this run can hold; anything else is passed over for the one before, with a sentence."""

import json
import math
import shutil

import pytest
import torch

from ripe_mambaspike.errors import DataError
from ripe_mambaspike.train.checkpoint import last_checkpoint, save_checkpoint
from ripe_mambaspike.train.checkpoint_checks import check_checkpoint, check_entries
from ripe_mambaspike.train.run import Run, Stop

NEWEST, BEFORE = (5, 1), (4, 1)  # moves and epochs of the two checkpoints that are there
MISSING = object()


@pytest.fixture(scope="module")
def stopped(tiny, go, watching, tmp_path_factory):
    """A run that was stopped after the fifth of its six moves, with a checkpoint after every one."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    callback = watching()
    with pytest.raises(Stop):
        go(
            tiny("run.checkpoint_minutes=0"), folder, callback,
            asked_to_stop=lambda: callback.trainer.place.moves == NEWEST[0],
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def waiting(stopped, tiny):
    """A run that could go on from there."""
    return Run(tiny(), stopped, None)


@pytest.fixture
def copy(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


def rewritten(folder, change):
    """The newest checkpoint with other contents, under a checksum that is right."""
    found = last_checkpoint(folder / "checkpoints")
    change(found)
    save_checkpoint(folder / "checkpoints", NEWEST, found)


def set_entry(name, value):
    def change(checkpoint):
        *above, last = name.split(".")
        place = checkpoint.document
        for step in above:
            place = place[int(step)] if step.isdecimal() else place[step]
        if value is MISSING:
            del place[last]
        else:
            place[int(last) if last.isdecimal() else last] = value

    return change


WRONG = [
    ("place", MISSING), ("place", None), ("place", []), ("place", {}), ("place", 3),
    ("place.epoch", 3), ("place.epoch", -1), ("place.epoch", 1.0), ("place.epoch", True), ("place.epoch", "1"),
    ("place.epoch", 0), ("place.epoch", 2), ("place.epoch", MISSING),
    ("place.batch", 1), ("place.batch", 3), ("place.batch", 4), ("place.batch", 10**30), ("place.batch", None),
    ("place.moves", 4), ("place.moves", 6), ("place.moves", -5), ("place.moves", [5]),
    ("place.clips", 7), ("place.clips", 0), ("place.clips", 12), ("place.clips", math.nan),
    ("place.seconds", -1.0), ("place.seconds", math.nan), ("place.seconds", math.inf), ("place.seconds", "now"),
    ("place.more", 1),
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
def test_an_entry_that_is_wrong(stopped, waiting, name, value):
    """By itself; in a run see `test_a_wrong_one_is_passed_over_and_the_run_ends_the_same`."""
    found = last_checkpoint(stopped / "checkpoints")
    check_checkpoint(found, waiting.trainer, waiting.data.store.folder.name)
    set_entry(name, value)(found)
    with pytest.raises((ValueError, KeyError)) as caught:
        check_checkpoint(found, waiting.trainer, waiting.data.store.folder.name)
    named = "rows" if name == "place.epoch" and value in (0, 2) else name.split(".")[0]  # other rows than epochs
    assert named in str(caught.value)
    assert len(str(caught.value)) < 300


def dropped(name):
    return lambda found: found.tensors.pop(next(one for one in found.tensors if one.startswith(name)))


def filled(name, value):
    return lambda found: found.tensors[name].fill_(value)


def reshaped(name):
    def change(found):
        found.tensors[name] = found.tensors[name].reshape(-1, 1).clone()

    return change


def retyped(name):
    def change(found):
        found.tensors[name] = found.tensors[name].double()

    return change


def added(found):
    found.tensors["model.more"] = torch.zeros(1)


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
def test_a_wrong_tensor_is_passed_over(copy, tiny, go, caplog, change):
    rewritten(copy, change)
    seen = []
    with pytest.raises(Stop):
        go(tiny(), copy, resume=True, asked_to_stop=lambda: not seen.append(1))
    assert "the checkpoint before it is tried" in caplog.text
    assert len(seen) == 1
    assert last_checkpoint(copy / "checkpoints").document["place"]["moves"] == 5  # the fifth move was taken again


def test_a_wrong_one_is_passed_over_and_the_run_ends_the_same(copy, finished, tiny, go, outcome, caplog):
    rewritten(copy, set_entry("place.batch", 3))
    go(tiny(), copy, resume=True)
    assert "place.batch" in caplog.text or "place.moves" in caplog.text
    assert outcome(copy) == outcome(finished)


def test_all_of_them_wrong(copy, tiny, go):
    for moves, epoch in (BEFORE, NEWEST):
        found = last_checkpoint(copy / "checkpoints")
        found.document["rows"] = None
        save_checkpoint(copy / "checkpoints", (moves, epoch), found)
    with pytest.raises(DataError) as caught:
        go(tiny(), copy, resume=True)
    assert caught.value.path == copy / "checkpoints"
    assert not (copy / "result.json").exists()


def test_a_loss_that_is_no_number_may_stand_in_the_log(stopped):
    """Validation can end in one, which picks nothing."""
    document = last_checkpoint(stopped / "checkpoints").document
    document["rows"][0]["val_loss"] = math.nan
    document["best"]["score"] = [0.0, -math.inf]
    check_entries(json.loads(json.dumps(document)), 2)
