"""Runs of other machines in the results of a study."""

import json

import pytest
from tests.studies.stored_results import write_run

from raising import raises
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.studies import run as running
from ripe_mambaspike.studies.estimate import estimate_study, run_weights
from ripe_mambaspike.studies.plan import plan_study
from ripe_mambaspike.studies.records import add_runs
from ripe_mambaspike.studies.results import read_results
from ripe_mambaspike.studies.run import missing_runs, run_study
from ripe_mambaspike.studies.runner import Outcome, StudyProgress
from ripe_mambaspike.studies.study import load_study

NAME, ON = "sequence-modules", ["gestures-hard"]
ACCURACIES = {"mamba": (0.80, 0.82, 0.81), "gru": (0.70, 0.71, 0.72)}


def planned(out, seeds=(0, 1, 2)):
    return plan_study(load_study(NAME), ON, list(seeds), out=out, arms=list(ACCURACIES))


def stored(out, seeds):
    """A folder with the runs of these seeds, and its results."""
    for run in planned(out, seeds).runs:
        write_run(run, ACCURACIES[run.arm][run.seed])
    return report(out, seeds)


def report(out, seeds=(0, 1, 2), **options):
    return run_study(NAME, ON, list(seeds), out=out, arms=list(ACCURACIES), report_only=True, **options)


def test_two_machines_give_the_numbers_of_one(tmp_path):
    whole = stored(tmp_path / "whole", (0, 1, 2))
    stored(tmp_path / "first", (0,))
    stored(tmp_path / "second", (1, 2))
    joined = report(tmp_path / "second", add=[tmp_path / "first" / NAME / "results.json"])
    assert joined.sets == whole.sets
    assert (joined.ended, joined.hours, joined.devices) == (whole.ended, whole.hours, whole.devices)
    assert sorted(one.id for one in joined.runs) == sorted(one.id for one in whole.runs)
    assert report(tmp_path / "second").sets == whole.sets  # they stay, and can be passed on
    assert report(tmp_path / "third", add=[tmp_path / "second" / NAME]).ended == 6


def test_added_runs_are_not_run_again(tmp_path):
    stored(tmp_path / "first", (0, 1))
    report(tmp_path / "here", add=[tmp_path / "first" / NAME])
    plan = planned(tmp_path / "here")
    todo = missing_runs(plan)
    assert [run.seed for run in todo] == [2, 2]
    assert run_weights(plan, todo) == pytest.approx([66.0, 66.0])  # as long as the added ones took


def without_gru(tmp_path, seeds):
    """The results of another machine on which the GRU was not run."""
    path = tmp_path / "first" / NAME / "results.json"
    stored(tmp_path / "first", seeds)
    document = json.loads(path.read_text())
    document["runs"] = [one for one in document["runs"] if one["arm"] == "mamba"]
    path.write_text(json.dumps(document))
    return path, document["runs"][0]["clips"]["train"]


def test_the_time_is_estimated_from_added_runs(tmp_path):
    """Without the data: clips are those of the added runs, and an arm of the same network takes as long for them."""
    path, clips = without_gru(tmp_path, (0,))
    plan = planned(tmp_path / "here", (0, 1))
    assert estimate_study(plan, plan.runs).seconds is None
    add_runs(plan, [path])
    todo = missing_runs(plan)
    found = estimate_study(plan, todo)
    assert (found.runs, found.clips) == (3, 3 * clips * plan.runs[0].recipe.schedule.epochs)
    assert found.seconds == pytest.approx(3 * 66.0)
    assert run_weights(plan, todo) == pytest.approx([66.0] * 3)


def test_a_network_that_has_not_ended_anywhere_takes_as_long_for_a_clip_as_the_others(tmp_path):
    study = load_study("peers")
    plan = plan_study(study, ON, [0], out=tmp_path / "first", arms=["sdt"])
    write_run(next(run for run in plan.runs if run.arm == "ours"), 0.8, measured=["cost", "speed"])
    run_study(study, ON, [0], out=tmp_path / "first", arms=["sdt"], report_only=True)
    here = plan_study(study, ON, [0], out=tmp_path / "here", arms=["sdt"])
    add_runs(here, [tmp_path / "first" / "peers"])
    (todo,) = missing_runs(here)
    found = estimate_study(here, [todo])
    assert todo.arm == "sdt"
    assert found.seconds == pytest.approx(66.0)
    assert "1 of networks of which none has" in found.source


def test_a_run_of_its_own_is_preferred(tmp_path):
    stored(tmp_path / "first", (0, 1))
    for run in planned(tmp_path / "here", (0,)).runs:
        write_run(run, 0.5)
    results = report(tmp_path / "here", add=[tmp_path / "first" / NAME])
    assert results.sets[0].arm("gru").top1.values == pytest.approx([50, 71])


def test_a_run_without_what_this_study_measures_is_run_again(tmp_path):
    stored(tmp_path / "first", (0,))
    path = tmp_path / "first" / NAME / "results.json"
    document = json.loads(path.read_text())
    document["runs"][0]["measures"]["measured"] = []
    path.write_text(json.dumps(document))
    report(tmp_path / "here", add=[path])
    assert len(missing_runs(planned(tmp_path / "here", (0,)))) == 1


def test_a_record_is_not_replaced_by_one_of_which_less_was_measured(tmp_path):
    stored(tmp_path / "first", (0,))
    path = tmp_path / "first" / NAME / "results.json"
    poor = tmp_path / "poor.json"
    document = json.loads(path.read_text())
    for one in document["runs"]:
        one["measures"]["measured"] = []
    poor.write_text(json.dumps(document))
    for files in ([path, poor], [poor, path], [poor]):
        report(tmp_path / "here", (0,), add=files)
        assert not missing_runs(planned(tmp_path / "here", (0,)))


def test_results_without_a_run_of_this_study_are_refused(tmp_path):
    stored(tmp_path / "first", (0,))
    with raises(DataError, "add"):
        run_study(NAME, ["sim-cifar10"], [0], out=tmp_path / "here", report_only=True, add=[tmp_path / "first" / NAME])
    with raises(DataError):
        report(tmp_path / "here", add=[tmp_path / "nowhere.json"])
    assert not (tmp_path / "here").exists()


def test_runs_on_other_data_are_refused(tmp_path, gestures_root, tiny_settings):
    options = {"out": tmp_path / "out", "settings": tiny_settings, "arms": ["gru"]}
    without = plan_study(load_study(NAME), ["synthgesture"], [0], **options)
    for run in without.runs:
        write_run(run, 0.5)
    run_study(NAME, ["synthgesture"], [0], report_only=True, **options)
    path = tmp_path / "out" / NAME / "results.json"
    document = json.loads(path.read_text())
    for one in document["runs"]:
        one["store"] = "0" * 16
    path.write_text(json.dumps(document))
    with raises(DataError, "store"):
        run_study(NAME, ["synthgesture"], [0], root=gestures_root, add=[path], **{**options, "out": tmp_path / "other"})
    assert not (tmp_path / "other" / NAME / "added.json").exists()


def test_the_document_is_read_as_it_was_written(tmp_path):
    results = stored(tmp_path, (0, 1))
    assert read_results(tmp_path / NAME) == results
    assert {one.commit for one in results.runs} == {"abc"}


def test_results_are_written_while_a_study_runs(tmp_path, monkeypatch, gestures_root, tiny_settings):
    """So that a machine which is lost takes the runs under way with it, and no others."""
    seen = []

    def train_all(plan, todo, num_jobs, slurm, limit_s, whole_runs, watch):
        for count, run in enumerate(todo, 1):
            write_run(run, 0.5)
            watch(StudyProgress(len(todo), count, 0, 0, None), Outcome(run, True))
            seen.append(read_results(plan.folder).ended)

    monkeypatch.setattr(running, "_run_missing", train_all)
    monkeypatch.setattr(running, "WRITE_SECONDS", -1.0)
    heard = []
    run_study(
        NAME, ["synthgesture"], [0, 1], root=gestures_root, out=tmp_path, arms=["gru"], settings=tiny_settings,
        watch=lambda progress, outcome: heard.append(outcome),
    )  # fmt: skip
    assert seen == [1, 2, 3, 4]
    assert len(heard) == 4
