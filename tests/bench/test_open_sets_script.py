"""`benchmarks/open_sets.py`: sets are made and trained once, and no test clip is read."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from benchmarks import open_sets

from ripe_mambaspike.data.sets.preparations import PREPARATIONS
from ripe_mambaspike.data.training_data import TrainingData
from ripe_mambaspike.train.recipes import load_recipe, with_settings

TINY = [
    "data.time_steps=3", "data.grid=12", "schedule.batch_size=4", "schedule.warmup_epochs=0", "run.validate_every=1",
    "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}", "run.recalibrate_batches=2",
    "schedule.epochs=2",
]  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Call the script on a tiny `gestures-hard`; the lines that it prints."""
    tiny = replace(
        PREPARATIONS["gestures-hard"], side=12, counts={"train": 22, "val": 11, "test": 11}, duration_us=100_000
    )
    monkeypatch.setitem(PREPARATIONS, "gestures-hard", tiny)
    monkeypatch.setattr(open_sets, "load_recipe", lambda name: with_settings(load_recipe(name), TINY))
    monkeypatch.setattr(open_sets, "WARM_STEPS", 1)
    monkeypatch.setattr(open_sets, "TIMED_STEPS", 2)
    monkeypatch.setattr(open_sets.os, "sched_getaffinity", lambda process: {0})

    def read_test(self):
        raise AssertionError("a test clip is read")

    monkeypatch.setattr(TrainingData, "test", property(read_test))

    def call(*words):
        options = ["--pictures", str(tmp_path), "--work", str(tmp_path / "work"), "--sets", "gestures-hard", *words]
        monkeypatch.setattr("sys.argv", ["open_sets.py", "--device", "cpu", *options])
        open_sets.main()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return call


@pytest.mark.slow
def test_a_set_is_made_and_trained_once_and_never_tested(run, tmp_path):
    made, trained = run("--variants", "default")
    assert (made["what"], made["clips"]) == ("made", {"train": 22, "val": 11, "test": 11})
    assert (trained["what"], trained["epochs"], trained["epochs_of_recipe"]) == ("trained", 2, 2)
    assert 0 <= trained["val_top1"] <= trained["best_val_top1"] <= 1
    assert trained["train_seconds"] > 0
    kept = [json.loads(line) for line in (tmp_path / "work" / "results.jsonl").read_text().splitlines()]
    assert kept == [made, trained]
    assert run("--variants", "default") == []
    more = run("--variants", "default", "harder", "--limit", "-1")
    assert [list(line) for line in more] == [["stopped"]]
    other = run("--variants", "default", "easier", "--limit", "600")
    assert [(line["variant"], line["what"]) for line in other] == [
        ("easier", "made"),
        ("easier", "trained"),
    ]


def test_the_variants_are_fields_of_the_difficulty():
    for name in open_sets.OPEN_SETS:
        difficulty = PREPARATIONS[name].difficulty
        for changes in open_sets.variants_of(name).values():
            assert all(hasattr(difficulty, field) for field in changes if field not in open_sets.COUNTS)
    assert {PREPARATIONS[name].shows for name in open_sets.OPEN_SETS} == {"gestures", *open_sets.PICTURES}


@pytest.fixture
def workers_of(tmp_path, monkeypatch):
    """Call the script on sixteen cores: how many workers each set is made with, and how many sets have processes."""
    monkeypatch.setattr(open_sets.os, "sched_getaffinity", lambda process: set(range(16)))
    made, commands = {}, []

    def make(name, out, workers, **options):
        made[name] = workers
        raise StopIteration  # nothing is made

    def start(command):
        commands.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(open_sets, "simulate_dataset", make)
    monkeypatch.setattr(open_sets.subprocess, "run", start)

    def run(*words):
        monkeypatch.setattr("sys.argv", list(words))
        with pytest.raises((StopIteration, SystemExit)) as ended:
            open_sets.main()
        assert getattr(ended.value, "code", 0) == 0

    def call(*words):
        made.clear()
        commands.clear()
        run("open_sets.py", "--pictures", str(tmp_path), "--work", str(tmp_path / "work"), *words)
        for command in list(commands):
            run(*command[1:])
        return dict(made), len(commands)

    return call


def test_the_cores_are_divided_among_the_jobs(workers_of):
    every = open_sets.SETS
    assert workers_of("--jobs", "3") == (dict.fromkeys(every, 5), 3)
    assert workers_of("--jobs", "2") == (dict.fromkeys(every, 8), 3)
    assert workers_of("--jobs", "3", "--workers", "2") == (dict.fromkeys(every, 2), 3)
    assert workers_of("--sets", "gestures-hard") == ({"gestures-hard": 16}, 0)
    assert workers_of("--jobs", "3", "--sets", "gestures-hard") == ({"gestures-hard": 16}, 0)
    assert workers_of("--jobs", "3", "--checksums") == ({"sim-cifar10": 16}, 0)  # one after another


def test_a_set_has_a_worker_where_there_are_more_jobs_than_cores():
    assert open_sets.workers_of_each(10**6) == 1


@pytest.mark.parametrize("option", ["--jobs", "--workers"])
def test_no_jobs_or_workers_are_refused(run, option, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        run(option, "0")
    assert ended.value.code == 2
    assert option in capsys.readouterr().err
    assert not (tmp_path / "work").exists()
