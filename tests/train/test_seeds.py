"""Groups of seeds: which runs there are and which run again, locally and by submitit, and how each ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from raising import raises
from ripe_mambaspike.errors import ConfigError, InputError, WeightsError
from ripe_mambaspike.models.accuracy import TrainingResult, read_result
from ripe_mambaspike.train import jobs, seeds
from ripe_mambaspike.train.jobs import SeedRun
from ripe_mambaspike.train.recipes import load_recipe, save_recipe, with_settings

RESULT = {
    "format": "ripe-result", "version": 1, "name": "x", "protocol": "validation", "picked_on": "val", "epoch": 1,
    "set": "x", "partition": None, "top1": 0.5, "top5": 1.0, "n": 10,
}  # fmt: skip
READ = TrainingResult(**RESULT)


def write_result(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps({**RESULT, **changes}))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("3", [3]), ("0-4", [0, 1, 2, 3, 4]), ("0,2,7", [0, 2, 7]), ("7,2", [7, 2]), ("5-5", [5]), ("007", [7])],
)
def test_seeds(text, wanted):
    assert seeds.parse_seeds(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "-", "a", "-1", "4-0", "0-4-8", "0,", ",1", "0,1-3", "1.5", "0 1", "0..4", "²", "0,0", "0-5000", "9" * 20],
)
def test_invalid_seeds_are_refused(text):
    with raises(ConfigError, field="--seeds", mentions=repr(text)):
        seeds.parse_seeds(text)


def test_a_huge_range_of_seeds_is_refused_at_once():
    with raises(ConfigError, field="--seeds", mentions="1000"):
        seeds.parse_seeds("0-99999999999")


def test_runs_and_their_folders(tmp_path):
    assert [run.name for run in seeds.plan_runs([0, 7], None, tmp_path)] == ["seed-0", "seed-7"]
    runs = seeds.plan_runs([0, 7], 2, tmp_path)
    assert [run.name for run in runs] == ["seed-0-fold-0", "seed-0-fold-1", "seed-7-fold-0", "seed-7-fold-1"]
    assert [(run.seed, run.fold) for run in runs] == [(0, 0), (0, 1), (7, 0), (7, 1)]
    for folds in (1, 0, -3):
        with raises(ConfigError, field="--folds", mentions=f"got {folds}"):
            seeds.plan_runs([0], folds, tmp_path)


def test_the_command_and_its_settings(tmp_path):
    run = SeedRun(7, 2, tmp_path / "seed-7-fold-2")
    settings = seeds.run_settings(run, 10, ["schedule.epochs=3"])
    assert settings == ["schedule.epochs=3", "run.seed=7", "data.folds=10", "data.fold=2"]
    words = seeds.train_command("nmnist", run, settings)
    assert words[:5] == [sys.executable, "-m", "ripe_mambaspike", "train", "nmnist"]
    assert words[5:] == ["--out", str(run.folder), "--resume", "auto", "--set", *settings]
    made = with_settings(load_recipe("synthgesture"), settings)
    assert (made.run.seed, made.data.folds, made.data.fold, made.schedule.epochs) == (7, 10, 2, 3)
    assert seeds.run_settings(SeedRun(7, None, tmp_path), None, []) == ["run.seed=7"]


@pytest.mark.parametrize("setting", ["run.seed=3", "data.fold=1", "data.folds=2", " run.seed =3"])
def test_seed_and_fold_cannot_be_set(setting):
    with raises(ConfigError, field=setting.split("=")[0].strip()):
        seeds.train_seeds("synthgesture", "0", settings=["schedule.epochs=1", setting])


def test_a_finished_run_of_the_same_recipe(tmp_path):
    run = SeedRun(1, None, tmp_path / "seed-1")
    asked = with_settings(load_recipe("synthgesture"), ["run.seed=1"])
    assert seeds.finished_result(run, asked) is None
    run.folder.mkdir()
    save_recipe(asked, run.folder / "recipe.yaml")
    assert seeds.finished_result(run, asked) is None
    write_result(run.folder)
    assert seeds.finished_result(run, asked) == READ
    elsewhere = with_settings(asked, ["run.device=cpu", "data.num_workers=3", "data.root=/elsewhere"])
    assert seeds.finished_result(run, elsewhere) == READ
    for setting in ("run.seed=2", "schedule.epochs=99", "data.partition=other", "model.fields.neurons=lif"):
        with raises(InputError, field=setting.split("=")[0], path=run.folder / "recipe.yaml"):
            seeds.finished_result(run, with_settings(asked, [setting]))


WRONG = [
    *(b"{", b"", b"[]", {"format": "ripe-labels"}, {"version": 2}, {"n": None}, {"n": 0}, {"top1": 98.1}),
    *({"top1": None}, {"top1": float("nan")}, {"top5": "1"}, {"epoch": "1"}, {"picked_on": "luck"}, {"per_class": {}}),
]


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_a_damaged_result(tmp_path, change):
    path = tmp_path / "result.json"
    path.write_bytes(change if isinstance(change, bytes) else json.dumps({**RESULT, **change}).encode())
    field = next(iter(change)) if isinstance(change, dict) else None
    with raises(WeightsError, field=None if "NaN" in path.read_text() else field, path=path):
        read_result(tmp_path)


def test_a_result_of_an_earlier_version(tmp_path):
    earlier = {"cut" if name == "partition" else name: value for name, value in RESULT.items()}
    (tmp_path / "result.json").write_text(json.dumps({**earlier, "cut": "people"}))
    assert read_result(tmp_path).partition == "people"


def script(text):
    return [sys.executable, "-c", text]


def writing(folder, more=""):
    """A program that leaves a result, as training does."""
    made = f"import json, pathlib; f = pathlib.Path({str(folder)!r}); f.mkdir(parents=True, exist_ok=True)"
    return script(f"{made}; (f / 'result.json').write_text(json.dumps({RESULT!r})); {more}")


def test_runs_here_and_the_failed_one_leaves_the_others(tmp_path):
    runs = seeds.plan_runs([0, 1, 2, 3, 4], None, tmp_path)
    commands = [
        (runs[0], writing(runs[0].folder, "print('fine')")),
        (runs[1], script("import sys; print('ripe: there is no GPU', file=sys.stderr); sys.exit(2)")),
        (runs[2], script("print('all is well')")),
        (runs[3], writing(runs[3].folder, "raise SystemExit(3)")),
        (runs[4], writing(runs[4].folder)),
    ]
    reported = []
    outcomes = jobs.run_local(commands, 2, reported.append)
    assert [outcome.run for outcome in outcomes] == runs
    assert sorted(outcome.run.seed for outcome in reported) == [0, 1, 2, 3, 4]
    assert [outcome.result for outcome in outcomes] == [READ, None, None, None, READ]
    assert [outcome.error for outcome in outcomes] == [
        None,
        "exit code 2: there is no GPU",
        "no result.json: all is well",
        "exit code 3",
        None,
    ]
    assert runs[0].log.read_text() == "fine\n"


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_num_jobs_limits_concurrent_runs(tmp_path, count):
    """Every run notes how many marks of others it sees while its own is there."""
    runs = seeds.plan_runs(list(range(6)), None, tmp_path)
    marks = tmp_path / "marks"
    marks.mkdir()
    commands = []
    for run in runs:
        text = (
            f"import pathlib, time; m = pathlib.Path({str(marks)!r}); own = m / '{run.seed}'; own.touch(); "
            "time.sleep(0.3); print(len(list(m.iterdir()))); own.unlink()"
        )
        commands.append((run, script(text)))
    jobs.run_local(commands, count, lambda outcome: None)
    seen = [int(run.log.read_text()) for run in runs]
    assert max(seen) <= count
    if count == 1:
        assert seen == [1] * 6


def _text(path):
    return path.read_text() if path.exists() else ""


@pytest.fixture
def default_sigint():
    """SIGINT as a terminal's programs have it; those that a script starts with & ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.usefixtures("default_sigint")
def test_an_interrupt_ends_started_runs(tmp_path, number):
    before = signal.getsignal(signal.SIGTERM)
    runs = seeds.plan_runs([0, 1, 2], None, tmp_path)
    text = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    sleeping = [(run, script(text)) for run in runs]

    def interrupt():
        until = time.monotonic() + 60
        while time.monotonic() < until and not all(_text(run.log).endswith("\n") for run in runs[:2]):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    with pytest.raises(KeyboardInterrupt):
        jobs.run_local(sleeping, 2, lambda outcome: None)
    waiting.join()
    assert signal.getsignal(signal.SIGTERM) == before
    for run in runs[:2]:
        with pytest.raises(ProcessLookupError):
            os.kill(int(run.log.read_text()), 0)
    assert _text(runs[2].log) == ""


def test_slurm_parameters():
    assert jobs.slurm_parameters(["gpu", "timeout_min=600", "slurm_qos=long"]) == {
        "timeout_min": 600,
        "gpus_per_node": 1,
        "cpus_per_task": 4,
        "slurm_partition": "gpu",
        "slurm_qos": "long",
    }
    for words, named in (([], "partition"), (["a=3"], "partition"), (["gpu", "fast"], "fast"), (["gpu", "x="], "x=")):
        with raises(ConfigError, field="--slurm", mentions=named):
            jobs.slurm_parameters(words)


def test_without_submitit(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with raises(InputError, field="--slurm", mentions="ripe-mambaspike[train]"):
        jobs.slurm_executor(tmp_path, {})


@pytest.mark.slow
def test_submitit_is_imported_only_for_slurm():
    code = "import sys; import ripe_mambaspike.train.seeds, ripe_mambaspike.cli.seeds; print('submitit' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


class TestSubmitit:
    @pytest.fixture(autouse=True)
    def cluster(self, monkeypatch):
        pytest.importorskip("submitit")
        monkeypatch.setattr(jobs, "CLUSTER", "local")
        monkeypatch.setattr(jobs, "POLL_SECONDS", 0.1)
        monkeypatch.setattr(jobs, "FILE_SYSTEM_SECONDS", 0.3)

    def test_jobs(self, tmp_path):
        executor = jobs.slurm_executor(tmp_path, {"timeout_min": 2, "slurm_partition": "gpu"})
        runs = seeds.plan_runs([0, 1], None, tmp_path)
        failing = script("import sys; sys.exit('ripe: no data')")
        reported = []
        outcomes = jobs.run_slurm([(runs[0], writing(runs[0].folder)), (runs[1], failing)], executor, reported.append)
        assert [outcome.result for outcome in outcomes] == [READ, None]
        assert "no data" in outcomes[1].error
        assert len(reported) == 2

    def test_unknown_slurm_options_are_refused(self, tmp_path, monkeypatch):
        with raises(InputError, field="--slurm", mentions="colour"):
            jobs.slurm_executor(tmp_path, {"slurm_partition": "gpu", "slurm_colour": 3})
        monkeypatch.setattr(jobs, "CLUSTER", "slurm")
        monkeypatch.setenv("PATH", str(tmp_path))
        with raises(InputError, field="--slurm", mentions="srun"):
            jobs.slurm_executor(tmp_path, {"slurm_partition": "gpu"})

    def test_a_job_that_is_stopped_asks_for_itself(self):
        task = jobs.SlurmTask(["x"], "log")
        assert task.checkpoint().function is task
