"""The worker pool: how many run at once, what happens when one dies, fails or is stopped; and one study for real."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from ripe_mambaspike.files import locked
from ripe_mambaspike.models.accuracy import read_result
from ripe_mambaspike.studies import runner
from ripe_mambaspike.studies.measures import read_measures
from ripe_mambaspike.studies.runner import run_workers
from ripe_mambaspike.studies.worker import RunTask, answer_task
from ripe_mambaspike.train.recipes import load_recipe, to_dict, with_settings
from ripe_mambaspike.train.run import train

WORKER = """
import json, os, pathlib, select, sys, time
answers = os.fdopen(int(os.environ["RIPE_WORKER_ANSWERS"]), "wb", buffering=0)
marks = pathlib.Path(sys.argv[1])
tasks = os.fdopen(0, "rb", buffering=0)
def say(event, **more):
    answers.write(json.dumps({"event": event, "folder": task["folder"], **more}).encode() + b"\\n")
while line := tasks.readline():
    task = json.loads(line)
    seed = task["recipe"]["run"]["seed"]
    with (marks / "started").open("a") as file:
        file.write(f"{os.getpid()} {seed}\\n")
    how = {HOW}.get(seed, "end")
    (marks / f"at-{os.getpid()}").touch()
    time.sleep({SECONDS})
    with (marks / "together").open("a") as file:
        file.write(f"{len(list(marks.glob('at-*')))}\\n")
    if how == "die":
        (marks / f"at-{os.getpid()}").unlink()
        pathlib.Path(task["log"]).write_text("first line\\nCUDA error: out of luck\\n")
        os.kill(os.getpid(), 9)
    if how == "wait":
        say("epoch", done=1, total=4)
        select.select([tasks], [], [])
        (marks / f"stopped-{seed}").touch()
        say("stopped")
        break
    (marks / f"at-{os.getpid()}").unlink()
    if how == "fail":
        say("failed", error="data: expected some, got none")
    elif how == "leave":
        say("failed", error="RuntimeError: CUDA", leaving=True)
        break
    else:
        say("ended")
"""


@pytest.fixture
def pool(tiny_plan, tmp_path, monkeypatch):
    """Runs a number of seeds with a stand-in for the worker: {seed: "die", "fail", "leave" or "wait"}."""

    def run(seeds, num_jobs, how=None, seconds=0.05, **options):
        program = tmp_path / "worker.py"
        program.write_text(WORKER.replace("{HOW}", repr(how or {})).replace("{SECONDS}", str(seconds)))
        monkeypatch.setattr(runner, "WORKER", (sys.executable, str(program), str(tmp_path)))
        runs = [run for run in tiny_plan(seeds=range(seeds)).runs if run.arm == "full"]
        return run_workers(runs, num_jobs, **options)

    return run


def started(tmp_path):
    return [tuple(map(int, line.split())) for line in (tmp_path / "started").read_text().splitlines()]


@pytest.mark.parametrize("num_jobs", [1, 3])
def test_workers_are_bounded_and_do_several_runs(pool, tmp_path, num_jobs):
    outcomes = pool(6, num_jobs)
    assert sorted(one.run.seed for one in outcomes) == list(range(6))
    assert all(one.ended and one.error is None for one in outcomes)
    assert len({process for process, _ in started(tmp_path)}) == num_jobs
    assert max(map(int, (tmp_path / "together").read_text().split())) <= num_jobs


def test_a_worker_that_dies_is_replaced_and_its_run_has_failed(pool, tmp_path):
    outcomes = {one.run.seed: one for one in pool(4, 1, {1: "die"})}
    assert {seed: one.ended for seed, one in outcomes.items()} == {0: True, 1: False, 2: True, 3: True}
    assert "signal 9" in outcomes[1].error
    assert "CUDA error: out of luck" in outcomes[1].error
    assert outcomes[1].run.error_file.read_text() == outcomes[1].error
    assert len({process for process, _ in started(tmp_path)}) == 2


def test_a_failed_run_leaves_the_others_and_a_broken_process_gets_no_more(pool, tmp_path):
    outcomes = {one.run.seed: one for one in pool(5, 1, {1: "fail", 2: "leave"})}
    assert [outcomes[seed].ended for seed in range(5)] == [True, False, False, True, True]
    assert outcomes[1].error == "data: expected some, got none"
    by_seed = {seed: process for process, seed in started(tmp_path)}
    assert by_seed[0] == by_seed[1] == by_seed[2] != by_seed[3] == by_seed[4]


def test_a_mark_of_failure_goes_when_the_run_ends(pool):
    failed = pool(1, 1, {0: "fail"})[0].run
    assert failed.error_file.exists()
    assert pool(1, 1)[0].ended
    assert not failed.error_file.exists()


def test_a_limit_stops_runs_and_starts_no_more(pool, tmp_path):
    begun = time.monotonic()
    outcomes = pool(3, 1, {0: "wait"}, limit_s=1.0)
    assert time.monotonic() - begun < 20
    assert [(one.run.seed, one.ended, one.error) for one in outcomes] == [(0, False, None)]
    assert (tmp_path / "stopped-0").exists()
    assert [seed for _, seed in started(tmp_path)] == [0]


@pytest.mark.parametrize(
    ("weights", "known", "begun"),
    [
        ([2e3, 0.2, 2e3], 1.0, [1]),  # in seconds: only the short one ends within the limit
        ([3e3, 3e3, 3e9], None, [0, 1]),  # in clips: the first says how fast they are
        ([0.2, 0.2, 0.2], 1.0, [0, 1, 2]),
    ],
)
def test_no_run_is_begun_that_would_not_end_in_time(pool, tmp_path, weights, known, begun):
    outcomes = pool(3, 1, limit_s=20.0, weights=weights, whole_runs=True, seconds_per_weight=known)
    assert [seed for _, seed in started(tmp_path)] == begun
    assert [one.ended for one in outcomes] == [True] * len(begun)


def test_a_run_that_is_only_measured_does_not_say_how_fast_runs_are(pool, tiny_plan, tmp_path):
    """The first has ended and was quick; the others are still expected to take longer than there is time."""
    tiny_plan(seeds=[0]).runs[0].folder.mkdir(parents=True)
    pool(3, 1, limit_s=20.0, weights=[1.0, 2e2, 2e2], whole_runs=True, seconds_per_weight=1.0)
    assert [seed for _, seed in started(tmp_path)] == [0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupt_lets_every_run_stop_by_itself(pool, tmp_path, number):
    def interrupt():
        until = time.monotonic() + 60
        while time.monotonic() < until and not (tmp_path / "together").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        pool(2, 1, {0: "wait"})
    thread.join()
    assert (tmp_path / "stopped-0").exists()
    assert [seed for _, seed in started(tmp_path)] == [0]


def test_progress_counts_runs_and_knows_the_time_left(pool):
    seen = []
    pool(3, 1, {2: "fail"}, seconds=0.2, already=4, watch=lambda progress, outcome: seen.append((progress, outcome)))
    assert [progress.ended for progress, outcome in seen if outcome] == [5, 6, 6]
    last = seen[-1][0]
    assert (last.total, last.ended, last.failed, last.running, last.seconds_left) == (7, 6, 1, 0, 0.0)
    halfway = next(progress for progress, outcome in seen if outcome)
    assert 0.2 < halfway.seconds_left < 60
    assert seen[0][0].seconds_left is None


class Executor:
    """Stands for submitit's: runs a job when it is submitted."""

    def submit(self, task):
        self.code = task()
        return self

    job_id, state = "7", "COMPLETED"

    def done(self):
        return True


@pytest.mark.slow
def test_runs_on_slurm_are_jobs_of_their_own(tiny_plan, gestures_root, tmp_path, monkeypatch):
    """The first run ends; the second has lost its data, and its job says so."""
    monkeypatch.setattr(runner.jobs, "slurm_executor", lambda out, parameters: Executor())
    monkeypatch.setattr(runner.jobs, "FILE_SYSTEM_SECONDS", 0.1)
    plan = tiny_plan(root=gestures_root, seeds=[0])
    lost = replace(plan.runs[1].recipe, data=replace(plan.runs[1].recipe.data, root=str(tmp_path)))
    runs, seen = [plan.runs[0], replace(plan.runs[1], recipe=lost)], []
    watch = lambda progress, outcome: seen.append(progress)  # noqa: E731
    outcomes = runner.run_on_slurm(runs, tmp_path, ["gpu"], conditions=["reversed"], watch=watch)
    assert [one.ended for one in outcomes] == [True, False]
    assert "data.root" in outcomes[1].error
    assert list(read_measures(runs[0].folder).conditions) == ["reversed"]
    assert (seen[-1].ended, seen[-1].failed, seen[-1].running) == (1, 1, 0)
    assert runs[1].error_file.exists()


@pytest.mark.slow
def test_a_study_that_is_killed_goes_on_and_gives_the_numbers_of_training_alone(
    tiny_plan, tiny_settings, gestures_root, tmp_path
):
    """The runner is killed after the first epoch: its worker stops with a checkpoint, and the next call goes on."""
    settings = [*(one for one in tiny_settings if "epochs" not in one), "schedule.epochs=6", "schedule.warmup_epochs=0"]
    plan = tiny_plan(root=gestures_root, seeds=[0], settings=settings)
    program = [sys.executable, "-c", KILLED, str(gestures_root), str(tmp_path / "out"), *settings]
    process = subprocess.Popen(program, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"an epoch has passed\n"
    process.kill()
    process.wait()
    first, until = plan.runs[0].folder, time.monotonic() + 60
    while (first / ".lock").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert list((first / "checkpoints").iterdir())
    assert plan.finished() == {}
    outcomes = run_workers(plan.runs, 1, measures=["rates"], conditions=["shuffled"])
    assert [(one.run.arm, one.ended, one.error) for one in outcomes] == [("full", True, None), ("no-tdm", True, None)]
    assert set(plan.finished()) == {run.folder for run in plan.runs}
    for run in plan.runs:
        alone = train(with_settings(run.recipe, []), tmp_path / "alone" / run.arm)
        together = read_result(run.folder)
        assert (together.top1, together.loss, together.rates) == (alone.top1, alone.loss, alone.rates)
        found = read_measures(run.folder)
        assert found.top1 == together.top1
        assert found.rates.layers == together.rates
        assert set(found.conditions) == {"shuffled"}
        assert not (run.folder / "checkpoints").exists()
    before = {run.folder: json.loads((run.folder / "measures.json").read_text()) for run in plan.runs}
    run_workers(plan.runs, 1, conditions=["reversed"])  # adds what is missing, and keeps the rest
    for run in plan.runs:
        now = json.loads((run.folder / "measures.json").read_text())
        assert now["conditions"].keys() == {"shuffled", "reversed"}
        assert now["rates"] == before[run.folder]["rates"]
    for num_jobs, known in ((2, False), (1, True)):  # the speed of two runs at a time is not that of one
        for run in plan.runs:
            (run.folder / "measures.json").unlink()
        run_workers(plan.runs, num_jobs, measures=["speed"])
        for run in plan.runs:
            found = read_measures(run.folder)
            assert found.measured == ["speed"]
            assert (found.clips_per_second is not None) == known
    result = json.loads((first / "result.json").read_text())
    result["top1"] += 1 / result["n"]  # not what the saved network does
    (first / "result.json").write_text(json.dumps(result))
    (first / "measures.json").unlink()
    (outcome,) = run_workers(plan.runs[:1], 1)
    assert not outcome.ended
    assert "top1" in outcome.error
    assert not (first / "measures.json").exists()


KILLED = """
import sys
from pathlib import Path
from ripe_mambaspike.studies.plan import plan_study
from ripe_mambaspike.studies.runner import run_workers
from ripe_mambaspike.studies.study import load_study
root, out, *settings = sys.argv[1:]
options = dict(out=Path(out), root=Path(root), settings=settings, arms=["no-tdm"])
plan = plan_study(load_study("components"), ["synthgesture"], [0], **options)
def watch(progress, outcome):
    if progress.seconds_left is not None:
        print("an epoch has passed", flush=True)
run_workers(plan.runs, 1, watch=watch)
"""


@pytest.mark.parametrize(("patience", "event"), [(30.0, "ended"), (0.0, "failed")])
def test_a_run_waits_for_the_worker_of_a_killed_study(tmp_path, monkeypatch, patience, event):
    """The folder is locked until its worker has stopped."""
    tries = []

    def train(recipe, folder, **options):
        tries.append(folder)
        if len(tries) < 3:
            with locked(folder / "lock", "a test"), locked(folder / "lock", "another run"):
                pass

    monkeypatch.setattr("ripe_mambaspike.train.run.train", train)
    monkeypatch.setattr("ripe_mambaspike.studies.measures.measure_run", lambda *words, **options: None)
    monkeypatch.setattr("ripe_mambaspike.studies.worker.LOCK_SECONDS", patience)
    task = RunTask(recipe=to_dict(load_recipe("synthgesture")), folder=str(tmp_path), log=str(tmp_path / "log"))
    said = []
    answer_task(task, lambda: False, said.append)
    assert (said[-1].event, len(tries)) == (event, 3 if patience else 1)
