"""Two processes take the steps that one would take with all their clips; they stop, resume and fail together."""

import hashlib
import json
import math
import os
import socket
import subprocess
import sys

import pytest
import torch
from torch import multiprocessing

from raising import raises
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.train import distributed
from ripe_mambaspike.train.callback import TrainingStopped
from ripe_mambaspike.train.distributed import SINGLE_PROCESS, Processes, process_group, processes_from_environment
from ripe_mambaspike.train.run import train

pytestmark = pytest.mark.slow  # each process starts anew
PLAIN = (  # nothing is drawn, so that it does not matter who draws
    "augmentation.nda_operations=0",
    "augmentation.horizontal_flip=0",
    "augmentation.time_reversal=0",
    "augmentation.polarity_flip=0",
    "augmentation.mixup_probability=0",
    "augmentation.cutmix_probability=0",
    "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8], drop_path_rate: 0.0}",
)
CURVES = ("loss", "hard", "relaxed", "consistency", "rate", "grad_norm", "rate_1", "rate_6", "tdm_6", "train_top1")
PICKED = ("val_loss", "val_top1", "lr", "sharpness", "relaxed_share")
SHORT = (
    "schedule.batch_size=5",
    "schedule.grad_accum_steps=2",
)  # 10 clips and then 1: the first process has none of it
APART = (
    "schedule.batch_size=2",
    "run.sync_batch_norm=false",
    "run.ema_decay=0.5",
    "loss.passes=1",
    "schedule.epochs=1",
)


class Watching:
    """Remembers the trainer; asks for a stop, or fails, after so many steps."""

    def __init__(self, stop_after=None, fail_after=None):
        self.stop_after, self.fail_after, self.trainer, self.steps = stop_after, fail_after, None, 0

    def on_train_begin(self, recipe, data, trainer):
        self.trainer = trainer

    def on_step_end(self, trainer):
        self.steps += 1
        if self.steps == self.fail_after:
            raise DataError("a file cannot be read; another is wanted")

    def stop_requested(self):
        return self.steps == self.stop_after

    def on_epoch_end(self, row, best):
        pass

    def on_message(self, line):
        pass

    def state(self):
        """Of weights and statistics, in a few letters."""
        digest = hashlib.sha256()
        for value in self.trainer.model.state_dict().values():
            digest.update(value.numpy().tobytes())
        return digest.hexdigest()


def work(rank, port, folder, drawn, short, apart, rare):
    """Several runs, one after the other, in folders of their names."""
    torch.set_num_threads(1)
    distributed.EVAL_BATCH = 4  # so that both have something to evaluate
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
    processes, reported = processes_from_environment(), {}

    def go(name, recipe, stop_after=None, fail_after=None, **how):
        callback = Watching(stop_after, fail_after)
        how |= {"processes": processes, "stop_requested": callback.stop_requested}
        try:
            reported[f"result of {name}"] = train(recipe, folder / name, callback=callback, **how).confusion
        except TrainingStopped:
            reported[f"{name} stopped"] = callback.steps
        reported[f"state after {name}"] = callback.state()

    try:
        with process_group(processes, "cpu"):
            go("short", short)
            go("apart", apart)
            go("rare", rare, save_seconds=1e9 if rank else 0.0)  # clocks that differ at the end of an epoch
            go("whole", drawn)
            go("stopped", drawn, stop_after=2 if rank == 1 else None)
            go("stopped", drawn, resume=True)
            go("failed", drawn, fail_after=4 if rank == 1 else None)  # in the second epoch
    except Exception as error:
        reported["ended by"] = f"{type(error).__name__}: {error}"
    (folder / f"{rank}.json").write_text(json.dumps(reported))


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """(folder, what each process tells)."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    rare = tiny("schedule.batch_size=2", "run.validate_every=2")
    recipes = tiny("schedule.batch_size=2"), tiny(*PLAIN, *SHORT), tiny(*PLAIN, *APART), rare
    multiprocessing.spawn(work, (port, folder, *recipes), nprocs=2)
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def compare(given, wanted, columns=CURVES + PICKED):
    assert len(given) == len(wanted) == 2
    for mine, theirs in zip(given, wanted, strict=True):
        for column in columns:
            assert math.isclose(float(mine[column]), float(theirs[column]), rel_tol=1e-4, abs_tol=1e-7), column


def test_torchrun_gives_the_curve_of_one_process_with_the_doubled_batch(tiny, tiny_words, go, read_log, tmp_path):
    words = [*tiny_words(*PLAIN, "schedule.batch_size=2"), "--out", str(tmp_path / "two")]
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run([*starter, "-m", "ripe_mambaspike", *words], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("epoch 2/2") == ended.stdout.count("top-1") == 1  # one of them speaks
    found = go(tiny(*PLAIN, "schedule.batch_size=4"), tmp_path / "one")
    compare(read_log(tmp_path / "two"), read_log(tmp_path / "one"))
    result = json.loads((tmp_path / "two" / "result.json").read_text())
    assert result["n"] == sum(map(sum, result["confusion"])) == 11
    assert result["confusion"] == found["confusion"]
    assert result["loss"] == pytest.approx(found["loss"], rel=1e-4)
    assert result["rates"] == pytest.approx(found["rates"], rel=1e-3)


def test_a_process_without_clips_takes_part_and_counts_nothing(runs, tiny, go, read_log, tmp_path):
    found = go(tiny(*PLAIN, "schedule.batch_size=10", "schedule.grad_accum_steps=2"), tmp_path / "one")
    compare(read_log(runs[0] / "short"), read_log(tmp_path / "one"))
    assert runs[1][0]["result of short"] == found["confusion"]


@pytest.mark.parametrize("name", ["short", "apart", "rare", "whole", "stopped"])
def test_all_processes_have_the_same_weights_and_find_the_same(runs, name):
    first, second = runs[1]
    assert first[f"state after {name}"] == second[f"state after {name}"]
    assert first[f"result of {name}"] == second[f"result of {name}"]
    assert sum(map(sum, first[f"result of {name}"])) == 11


def test_a_stop_of_one_process_stops_both_and_they_resume(runs, outcome):
    folder, reported = runs
    assert reported[0]["stopped stopped"] == reported[1]["stopped stopped"] == 2
    assert outcome(folder / "stopped") == outcome(folder / "whole")


def test_processes_draw_differently(runs, read_log, tiny, go, tmp_path):
    go(tiny("schedule.batch_size=4"), tmp_path / "one")
    one, two = read_log(tmp_path / "one")[0], read_log(runs[0] / "whole")[0]
    assert one["lr"] == two["lr"]
    assert one["loss"] != two["loss"]


def test_one_that_fails_ends_the_other(runs):
    first, second = (reported["ended by"] for reported in runs[1])
    assert first.startswith("ProcessLostError: process 0 lost connection to the others")
    assert second == "DataError: a file cannot be read; another is wanted"


def test_a_run_resumes_only_with_as_many_processes(runs, tiny):
    with raises(
        ConfigError, field="processes", path=runs[0] / "failed", mentions="expected 2, as the run began, got 1"
    ):
        train(tiny("schedule.batch_size=2"), runs[0] / "failed", resume=True)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, SINGLE_PROCESS),
        ({"WORLD_SIZE": "1"}, SINGLE_PROCESS),
        ({"WORLD_SIZE": "3", "RANK": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, Processes(2, 3)),
        ({"WORLD_SIZE": "3"}, ("RANK", "None")),
        ({"WORLD_SIZE": "3", "RANK": "2"}, ("MASTER_ADDR", "none")),
        ({"WORLD_SIZE": "3", "RANK": "2", "MASTER_ADDR": "127.0.0.1"}, ("MASTER_PORT", "none")),
        ({"WORLD_SIZE": "3", "RANK": "3"}, ("RANK", "below WORLD_SIZE (3), got 3")),
        ({"WORLD_SIZE": "many"}, ("WORLD_SIZE", "'many'")),
    ],
)
def test_the_environment_of_torchrun(monkeypatch, variables, expected):
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if isinstance(expected, Processes):
        assert processes_from_environment() == expected
        return
    with raises(ConfigError, field=expected[0], mentions=expected[1]):
        processes_from_environment()
