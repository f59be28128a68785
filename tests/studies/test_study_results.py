"""Outputs of a study from stored results alone: numbers in the document, tables, figures and the page."""

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.studies.stored_results import MEASURES, RESULT, write_run

from raising import raises
from ripe_mambaspike.errors import ConfigError, DataError, InputError, VerificationError
from ripe_mambaspike.models.accuracy import Evaluation, TrainingResult
from ripe_mambaspike.studies import run as running
from ripe_mambaspike.studies.adopt import adopt_runs
from ripe_mambaspike.studies.estimate import estimate_study, longest_first, run_weights
from ripe_mambaspike.studies.measures import check_same_accuracy
from ripe_mambaspike.studies.plan import plan_study
from ripe_mambaspike.studies.results import read_results
from ripe_mambaspike.studies.run import missing_runs, run_study
from ripe_mambaspike.studies.study import load_study
from ripe_mambaspike.studies.study_tables import four_digits, study_csv, study_markdown
from ripe_mambaspike.train.recipes import save_recipe

ACCURACIES = {"mamba": [0.80, 0.82, 0.81], "gru": [0.70, 0.71, 0.72], "conv1d": [0.81, 0.80, 0.82], "none": [0.5]}


@pytest.fixture
def modules(tmp_path):
    """The folder of Table 3's study on one set, with stored runs: three seeds of three arms, one of another."""
    plan = plan_study(load_study("sequence-modules"), ["gestures-hard"], [0, 1, 2], out=tmp_path)
    for run in plan.runs:
        if run.seed < len(ACCURACIES.get(run.arm, [])):
            write_run(run, ACCURACIES[run.arm][run.seed])
    failed = next(run for run in plan.runs if (run.arm, run.seed) == ("none", 1))
    failed.error_file.parent.mkdir()
    failed.error_file.write_text("the worker died (signal 9)")
    return tmp_path


def report(out, name="sequence-modules", on=("gestures-hard",), seeds="0-2", **options):
    return run_study(name, on, seeds, out=out, report_only=True, **options)


def test_the_numbers_of_every_arm(modules):
    results = report(modules)
    assert results == read_results(modules / "sequence-modules")
    assert (results.planned, results.ended, results.failed) == (18, 10, 1)
    assert results.hours == pytest.approx(10 * 66 / 3600)
    assert results.devices == ["H200"]
    (one,) = results.sets
    assert (one.counterpart, one.clips["test"]) == ("dvsgesture", 200)
    gru = one.arm("gru")
    assert gru.top1.mean == pytest.approx(71)
    assert gru.effect.delta == pytest.approx(-10)
    assert gru.effect.p < 0.001
    assert gru.effect.p < gru.effect.p_holm < 0.01
    assert gru.effect.sigmas == pytest.approx(10)
    assert (gru.paper.delta, gru.paper.same_sign, gru.paper.within_two_sd) == (-0.45, True, False)
    assert gru.paper.verdict == "same direction"
    assert one.arm("conv1d").paper.verdict == "no difference shown, none printed"
    assert one.arm("mamba").effect is None
    single = one.arm("none")
    assert (single.effect.p, single.effect.stars, single.paper.verdict) == (None, None, "too few runs")
    assert (single.missing, single.failed) == ([2], {"1": "the worker died (signal 9)"})
    assert one.arm("transformer").top1 is None
    assert gru.cost.microjoules == 3.0


def test_a_run_that_was_not_evaluated_again_does_not_count(modules):
    plan = plan_study(load_study("sequence-modules"), ["gestures-hard"], [0, 1, 2], out=modules)
    first, second, _ = (run for run in plan.runs if run.arm == "gru")
    (first.folder / "measures.json").unlink()
    write_run(second, 0.71)
    (second.folder / "measures.json").write_text(json.dumps({**MEASURES, "top1": 0.715}))
    second.error_file.write_text("top1: expected 142 of 200 clips, got 143")
    results = report(modules)
    gru = results.sets[0].arm("gru")
    assert (gru.top1.n, gru.seeds, gru.missing, list(gru.failed)) == (1, [2], [0], ["1"])
    assert (results.ended, results.failed) == (8, 2)


def test_a_dataset_that_the_set_does_not_stand_for_is_named(modules):
    results = report(modules, "interface", seeds="0")
    assert results.sets[0].arm("pooled").paper.counterpart is False
    line = next(line for line in study_markdown(results).splitlines() if line.startswith("| pool to a quarter"))
    assert "+4.40 (CIFAR10-DVS)" in line


@pytest.mark.slow
def test_measures_of_another_study_are_not_shown(modules):
    """Table 3 asks for cost alone: rates and speed of shared runs belong to others."""
    plan = plan_study(load_study("sequence-modules"), ["gestures-hard"], [0], out=modules)
    rates = {"layers": [0.1, 0.2], "mean": 0.15, "sd_over_epochs": 0.001, "epochs": 10}
    write_run(plan.runs[0], 0.8, rates=rates, clips_per_second=100.0, measured=["cost", "rates", "speed"])
    arm = report(modules).sets[0].arm("mamba")
    assert (arm.rate, arm.clips_per_second, arm.cost.gflop) == (None, None, 1.0)
    plan = plan_study(load_study("neuron-mixes"), ["gestures-hard"], [0], out=modules)
    assert plan.runs[0].folder.exists()
    arm = report(modules, "neuron-mixes", seeds="0").sets[0].arm("csilif-silif-silif")
    assert (arm.rate.mean, arm.rate_by_layer, arm.rate_sd.mean, arm.rate_epochs) == (0.15, [0.1, 0.2], 0.001, 10)
    assert arm.paper.rate_sd == 0.0005


def test_tables_have_the_same_numbers(modules):
    report(modules)
    folder = modules / "sequence-modules"
    rows = {row["arm"]: row for row in csv.DictReader(io.StringIO((folder / "table.csv").read_text()))}
    assert float(rows["gru"]["delta"]) == pytest.approx(-10)
    assert (rows["gru"]["n"], rows["none"]["p"], rows["transformer"]["mean"]) == ("3", "", "")
    assert float(rows["gru"]["paper_delta"]) == -0.45
    text = (folder / "table.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("| GRU |"))
    assert "71.00 ± 1.00" in line
    assert "-10.00 ***" in line
    assert "-0.45" in line
    single = next(line for line in text.splitlines() if line.startswith("| None |"))
    assert "*" not in single
    assert "signal 9" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(17.904, "17.90"), (0.0295449, "0.02954"), (19470.4, "19,470"), (1273.4, "1,273"), (0, "0"), (999.96, "1000")],
)
def test_numbers_have_four_digits_and_no_exponent(value, text):
    assert four_digits(value) == text


def test_the_csv_has_the_interval_of_the_difference(modules):
    results = report(modules)
    (row,) = [row for row in csv.DictReader(io.StringIO(study_csv(results))) if row["arm"] == "gru"]
    effect = results.sets[0].arm("gru").effect
    assert (float(row["delta_low"]), float(row["delta_high"])) == (effect.low, effect.high)


@pytest.mark.slow
def test_figures_and_the_page(modules):
    report(modules, latency=None)
    folder = modules / "sequence-modules"
    for name in ("accuracy", "effects", "parameters", "energy"):
        assert (folder / f"{name}.svg").read_bytes().startswith(b"<?xml")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert not (folder / "conditions.svg").exists()
    page = (folder / "index.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 4
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "71.00 ± 1.00" in page
    before = (folder / "accuracy.svg").read_bytes()
    report(modules)
    assert (folder / "accuracy.svg").read_bytes() == before


def test_latency_from_a_file(modules, tmp_path, monkeypatch):
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({"cuda": {"mamba": 1.5, "gru": 1.25}, "cpu": {"gru": 30}}))
    results = report(modules, latency=path)
    assert results.sets[0].arm("gru").latency_ms == {"cuda": 1.25, "cpu": 30.0}
    assert (modules / "sequence-modules" / "latency.svg").exists()
    monkeypatch.setattr(running, "draw_study", lambda results: {})
    report(modules)
    assert not (modules / "sequence-modules" / "latency.svg").exists()
    path.write_text(json.dumps({"gestures-hard": {"cuda": {"gru": 2.5}}, "sim-cifar10": {"cuda": {"mamba": 1}}}))
    (one,) = report(modules, latency=path).sets
    assert [arm.latency_ms for arm in one.arms if arm.latency_ms] == [{"cuda": 2.5}]
    for text in ("[]", '{"cuda": {"gru": "fast"}}', '{"gestures-hard": {"cuda": {"gru": 2.5}}, "cpu": {"gru": 1}}'):
        path.write_text(text)
        with raises(DataError, path=path):
            report(modules, latency=path)


def test_results_cover_earlier_calls_with_the_same_settings(modules, monkeypatch):
    monkeypatch.setattr(running, "draw_study", lambda results: {})  # seconds, of which this is not a test
    report(modules, arms=["gru"], seeds="0-1")
    results = report(modules, arms=["conv1d"], seeds="2")
    assert [arm.arm for arm in results.sets[0].arms] == ["mamba", "gru", "conv1d"]
    assert [arm.seeds for arm in results.sets[0].arms] == [[0, 1, 2], [0, 1], [2]]
    assert results.planned == 6
    again = run_study("sequence-modules", out=modules, report_only=True)  # no options: what was asked before
    assert [arm.seeds for arm in again.sets[0].arms] == [[0, 1, 2], [0, 1], [2]]
    other = report(modules, arms=["gru"], settings=["schedule.epochs=999"])
    assert [arm.arm for arm in other.sets[0].arms] == ["mamba", "gru"]
    assert other.ended == 0


def test_conditions_have_tables_and_curves(tmp_path):
    study = load_study("robustness")
    plan = plan_study(study, ["gestures-hard"], [0, 1], out=tmp_path, arms=["no-tdm"])
    for run in plan.runs:
        write_run(run, 0.8, conditions=dict.fromkeys([*study.conditions, "shuffled"], 0.5 + 0.1 * run.seed))
    results = report(tmp_path, "robustness", seeds="0-1", arms=["no-tdm"])
    arm = results.sets[0].arm("no-tdm")
    assert list(arm.conditions) == list(study.conditions)  # not those of another study
    assert arm.conditions["noise=0.5"].mean == pytest.approx(55)
    assert arm.conditions["noise=0.5"].n == 2
    assert (tmp_path / "robustness" / "conditions.svg").exists()
    assert missing_runs(plan) == []


def test_a_run_that_lacks_a_measure_is_measured_again(tmp_path):
    study = load_study("time-order")
    plan = plan_study(study, ["gestures-hard"], [0], out=tmp_path, arms=["no-tdm"])
    for run, conditions in zip(plan.runs, [{"shuffled": 0.1, "reversed": 0.2}, {"shuffled": 0.1}], strict=True):
        write_run(run, 0.8, conditions=conditions)
    assert [run.arm for run in missing_runs(plan)] == ["no-tdm"]


def test_the_time_left_is_estimated_from_runs_that_have_ended(modules, gestures_root, tiny_settings):
    plan = plan_study(load_study("sequence-modules"), ["gestures-hard"], [0, 1, 2], out=modules)
    todo = missing_runs(plan)
    found = estimate_study(plan, todo)
    assert (found.runs, found.clips, found.seconds) == (8, None, None)  # the data is not there
    known = {"out": modules, "root": gestures_root, "settings": tiny_settings}
    there = plan_study(load_study("sequence-modules"), ["synthgesture"], [0, 1], arms=["gru"], **known)
    assert estimate_study(there, list(there.runs)).clips == 4 * 22
    assert estimate_study(there, list(there.runs)).seconds is None
    run = there.runs[0]
    run.folder.mkdir(parents=True)
    save_recipe(run.recipe, run.folder / "recipe.yaml")
    ended = {**RESULT, "top1": 0.5, "seconds": 11.0, "clips": {"train": 22, "val": 11, "test": 22}}
    (run.folder / "result.json").write_text(json.dumps(ended))
    assert estimate_study(there, list(there.runs[1:])).seconds == pytest.approx(3 * 11)
    assert run_weights(there, list(there.runs[1:])) == pytest.approx([11, 11, 11])
    assert estimate_study(there, []).seconds == 0


def test_the_longest_runs_of_a_seed_come_first(tmp_path):
    run = plan_study(load_study("time-order"), ["gestures-hard"], [0], out=tmp_path).runs[0]
    runs = [replace(run, seed=seed, arm=arm) for seed, arm in ((1, "a"), (1, "b"), (0, "a"), (0, "b"), (1, "c"))]
    ordered, weights = longest_first(runs, [1.0, 2.0, 3.0, 4.0, 2.5])
    assert [(run.seed, run.arm) for run in ordered] == [(1, "c"), (1, "b"), (1, "a"), (0, "b"), (0, "a")]
    assert weights == [2.5, 2.0, 1.0, 4.0, 3.0]


def test_finished_runs_from_elsewhere_are_taken_over(modules, tmp_path):
    """A recipe that spells a default out is the same run; one on other data or with another field is not."""
    plan = plan_study(
        load_study("neuron-mixes"), ["gestures-hard"], [0, 1], out=modules / "other", arms=["lif-lif-lif"]
    )
    first, second = plan.runs[0], plan.runs[1]
    source = tmp_path / "elsewhere" / "deep" / "seed-0"
    write_run(type(first)(first.set, first.arm, 0, first.recipe, source), 0.75)
    fields = "model:\n  name: dvsgesture\n  fields: {neurons: [csilif, silif, silif]}"
    text = (source / "recipe.yaml").read_text()
    start, end = text.index("model:"), text.index("optimizer:")
    (source / "recipe.yaml").write_text(text[:start] + fields + "\n" + text[end:])
    assert adopt_runs(plan, [tmp_path / "elsewhere"]) == []  # without its network
    (source / "best").mkdir()
    (source / "best" / "config.json").write_text("{}")
    (source / "checkpoints").mkdir()
    assert adopt_runs(plan, [tmp_path / "elsewhere"]) == [first]
    assert plan.finished()[first.folder].top1 == 0.75
    assert sorted(path.name for path in first.folder.iterdir()) == ["best", "recipe.yaml", "result.json"]
    assert adopt_runs(plan, [tmp_path / "elsewhere"]) == []
    assert not second.folder.exists()
    with raises(InputError, field="reuse"):
        adopt_runs(plan, [tmp_path / "nowhere"])


def test_a_network_that_does_otherwise_than_its_result_is_an_error(tmp_path):
    result = TrainingResult(**{**RESULT, "top1": 0.75, "n": 4})
    check_same_accuracy(tmp_path, result, Evaluation(np.array([[2, 1], [0, 1]]), 4, 0.1, []))
    with raises(VerificationError, field="top1", path=tmp_path):
        check_same_accuracy(tmp_path, result, Evaluation(np.array([[2, 0], [0, 2]]), 4, 0.1, []))
    with raises(VerificationError, field="top1"):
        check_same_accuracy(tmp_path, result, Evaluation(np.array([[3, 1], [1, 3]]), 8, 0.1, []))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"num_jobs": 0}, "jobs"),
        ({"num_jobs": 2, "slurm": ["gpu"]}, "jobs"),
        ({"limit_s": 0.0}, "limit"),
        ({"whole_runs": True}, "whole_runs"),
    ],
)
def test_options_that_cannot_be_used(tmp_path, options, field):
    with raises(ConfigError, field=field):
        run_study("components", ["gestures-hard"], "0", out=tmp_path, **options)
