"""A run that is killed, stopped or interrupted anywhere and resumed ends with the same bits as one never stopped."""

import json
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.report.curves import log_table
from ripe_mambaspike.report.formatting import duration_text
from ripe_mambaspike.report.run_data import read_run
from ripe_mambaspike.train import trainer as loop
from ripe_mambaspike.train.callback import TrainingStopped
from ripe_mambaspike.train.checkpoint import last_checkpoint, save_checkpoint
from ripe_mambaspike.train.training_run import TrainingRun

RICH = (
    "schedule.grad_accum_steps=2",  # steps of 8 clips and of the 3 that are left
    "run.ema_decay=0.5",
    "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8], drop_path_rate: 0.5}",
    "augmentation.mixup_alpha=0.4",
    "augmentation.mixup_probability=0.7",
    "augmentation.cutmix_alpha=0.4",
    "augmentation.cutmix_probability=0.7",
    "augmentation.polarity_flip=0.5",
    "run.seed=3",
)
RECIPES = {"plain": (), "rich": RICH}
# One process that has imported everything and forks for each command: [words, moment to die at, file for its output].
SERVER = """
import contextlib, json, os, signal, sys
import ripe_mambaspike.train.checkpoint, ripe_mambaspike.train.training_run
from ripe_mambaspike.cli.main import main

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def arm(place, count, when):
    module, *owners, name = place.split(":")
    owner = sys.modules["ripe_mambaspike.train." + module]
    for step in owners:
        owner = getattr(owner, step)
    real, calls = getattr(owner, name), []

    def half_written(path):
        @contextlib.contextmanager
        def cut():
            with real(path) as file:
                write = file.write
                class Half:
                    def write(self, data):
                        write(data[: len(data) // 2])
                        file.flush()
                        die()
                yield Half()
        return cut()

    def watched(*args, **kwargs):
        calls.append(1)
        if len(calls) != count:
            return real(*args, **kwargs)
        if when == "half":
            return half_written(*args)
        if when == "after":
            real(*args, **kwargs)
        die()

    setattr(owner, name, watched)

for line in sys.stdin:
    words, moment, out = json.loads(line)
    child = os.fork()
    if not child:
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1), os.dup2(file, 2)
        code = 99
        try:
            if moment:
                arm(*moment)
            code = main(words)
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
STEP, TEST = "training_run:TrainingRun:_after_step", "training_run:TrainingRun:_test"
LOGGED = "training_run:write_log"
# (moment to die at, the checkpoint that is then the last: steps and epochs); each resumes from the one before.
EVERY_STEP = {
    "plain": [
        ((STEP, 1, "before"), None),  # before anything was saved
        ((STEP, 2, "after"), (2, 0)),  # right after a checkpoint within an epoch
        (("checkpoint:atomic_write", 1, "half"), (2, 0)),  # a checkpoint half on the disk
        (("training_run:save_pretrained", 1, "after"), (3, 0)),  # a network in best/ that no checkpoint knows
        ((LOGGED, 1, "before"), (3, 1)),  # between epochs, the log not written yet
        (("training_run:TrainingRun:_evaluate", 1, "before"), (6, 1)),  # in the last validation
        ((TEST, 1, "before"), (6, 2)),  # before the test part was read
    ],
    "rich": [
        ((STEP, 1, "after"), (1, 0)),
        (("training_run:save_pretrained", 1, "after"), (2, 0)),
        ((STEP, 1, "after"), (3, 1)),
        (("training_run:write_result", 1, "before"), (4, 2)),
    ],
}
EPOCHS_ALONE = {
    "plain": [((STEP, 2, "after"), None), ((STEP, 5, "after"), (3, 1))],
    "rich": [((STEP, 1, "after"), None), ((STEP, 3, "after"), (2, 1)), ((LOGGED, 1, "after"), (4, 2))],
}


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Words and a moment → the exit code, -9 for a process that was killed, and what it printed."""
    printed = tmp_path_factory.mktemp("printed") / "output"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )

    def run(words, moment=None):
        print(json.dumps([words, moment, str(printed)]), file=server.stdin, flush=True)
        return int(server.stdout.readline()), printed.read_text()

    yield run
    server.stdin.close()
    assert server.wait(60) == 0


@pytest.fixture(scope="module")
def whole(finished, tiny, go, outcome, tmp_path_factory):
    """What the runs end with that were never stopped; made in this process, the others in their own."""
    folder = tmp_path_factory.mktemp("whole") / "rich"
    go(tiny(*RICH), folder)
    return {"plain": outcome(finished), "rich": outcome(folder)}


def newest(folder):
    files = sorted(path.name for path in (folder / "checkpoints").glob("step-*.safetensors"))
    return tuple(int(word) for word in files[-1].removesuffix(".safetensors").split("-")[1:]) if files else None


def killed_along(command, words, moments, folder):
    for moment, place in moments:
        code, printed = command([*words, "--resume", "auto", "--out", str(folder)], moment)
        assert code == -signal.SIGKILL, (moment, printed)
        assert newest(folder) == place, moment
        assert not (folder / "result.json").exists()
    code, printed = command([*words, "--resume", "auto", "--out", str(folder)])
    assert code == 0, printed
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "rich"])
def test_killed_with_a_checkpoint_after_every_step(command, whole, tiny_words, outcome, tmp_path, name):
    words = tiny_words(*RECIPES[name], "run.checkpoint_minutes=0")
    killed_along(command, words, EVERY_STEP[name], tmp_path / "run")
    assert outcome(tmp_path / "run") == whole[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RECIPES))
def test_killed_with_a_checkpoint_after_every_epoch(command, whole, tiny_words, outcome, tmp_path, name):
    killed_along(command, tiny_words(*RECIPES[name]), EPOCHS_ALONE[name], tmp_path / "run")
    assert outcome(tmp_path / "run") == whole[name]


def test_killed_between_the_last_checkpoint_and_the_log(command, whole, tiny_words, outcome, tmp_path):
    killed_along(command, tiny_words(), [((LOGGED, 2, "before"), (6, 2))], tmp_path / "run")
    assert outcome(tmp_path / "run")["log"] == whole["plain"]["log"]


def test_the_rich_run_is_another_one(whole):
    assert whole["rich"]["best"]["model.safetensors"] != whole["plain"]["best"]["model.safetensors"]
    assert whole["rich"]["log"] != whole["plain"]["log"]


def test_stopped_after_every_single_step(whole, tiny, go, outcome, monkeypatch, tmp_path):
    recipe, folder = tiny(*RICH), tmp_path / "run"
    targets, real = [], loop.accumulated_step

    def spy(model, optimizer, batches, settings):
        targets.append([y for _, y in batches])
        return real(model, optimizer, batches, settings)

    monkeypatch.setattr(loop, "accumulated_step", spy)
    for step in range(1, 5):
        with pytest.raises(TrainingStopped):
            go(recipe, folder, resume=True, stop_requested=lambda: True)
        assert last_checkpoint(folder / "checkpoints").document.state.global_step == step
    go(recipe, folder, resume=True, stop_requested=lambda: True)  # nothing is left but validation and test
    assert outcome(folder) == whole["rich"]
    assert [[len(y) for y in step] for step in targets] == [[4, 4], [3], [4, 4], [3]]
    kinds = [len(row.unique()) for step in targets for y in step for row in y]
    assert 2 in kinds  # a class and the rest
    assert 3 in kinds  # two classes, mixed


def test_the_point_of_resuming_is_reported(tiny, go, watching, tmp_path):
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", stop_requested=lambda: True)
    callback = watching()
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", callback, resume=True, stop_requested=lambda: True)
    assert callback.lines == ["resuming at epoch 1, batch 2"]


def test_other_clips_are_refused(tiny, go, tmp_path):
    """Another place for the same clips is fine, other clips there are not."""
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", stop_requested=lambda: True)
    simulate_dataset("synthgesture", tmp_path / "others", train=6, val=2, test=2, size=16, seed=1)
    with pytest.raises(RipeError):
        go(tiny(f"data.root={tmp_path / 'others'}"), tmp_path / "run", resume=True)


def test_resuming_with_the_same_clips_in_another_folder(tiny, go, gestures, whole, outcome, tmp_path):
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", stop_requested=lambda: True)
    (tmp_path / "moved").symlink_to(gestures)
    go(tiny(f"data.root={tmp_path / 'moved'}"), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == whole["plain"]


def test_seconds_continue_after_resuming(tiny, go, read_log, tmp_path):
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", stop_requested=lambda: True)
    reached = last_checkpoint(tmp_path / "run" / "checkpoints")
    later = msgspec.structs.replace(reached.document, seconds=reached.document.seconds + 5000.0)
    save_checkpoint(tmp_path / "run" / "checkpoints", reached._replace(document=later))
    result = go(tiny(), tmp_path / "run", resume=True)
    assert 5000 < result["seconds"] < 5000 + 600
    seconds = [float(row["seconds"]) for row in read_log(tmp_path / "run")]
    assert len(seconds) > 1
    assert 5000 < seconds[0] < seconds[-1] <= result["seconds"] + 0.1  # the log has six digits
    run = read_run(tmp_path / "run")
    assert f"{duration_text(seconds[-1])} in all" in log_table(run)["summary"]  # the report's sum of them was hours


def test_epochs_within_save_seconds_write_no_checkpoint(tiny, go, outcome, monkeypatch, tmp_path):
    recipe = tiny("schedule.epochs=5", "run.validate_every=3")
    go(recipe, tmp_path / "each")
    saved, save = [], TrainingRun.save

    def spy(run):
        saved.append(run.trainer.state.epoch)
        save(run)

    monkeypatch.setattr(TrainingRun, "save", spy)
    go(recipe, tmp_path / "few", save_seconds=1e9)
    assert saved == [3, 5]  # the epochs that are validated
    assert outcome(tmp_path / "few") == outcome(tmp_path / "each")
    steps = []
    with pytest.raises(TrainingStopped):  # in the fifth epoch
        go(recipe, tmp_path / "stopped", save_seconds=1e9, stop_requested=lambda: steps.append(1) or len(steps) == 14)
    assert saved[2:] == [3, 4]
    go(recipe, tmp_path / "stopped", resume=True, save_seconds=1e9)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "each")
