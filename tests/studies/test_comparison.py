"""Statistics of arms: intervals, p-values, Holm's adjustment, and the verdict beside the paper's value."""

import math

import pytest
from scipy import stats

from ripe_mambaspike.studies.comparison import (
    compare_with_paper,
    effect_of,
    judge,
    paper_value,
    stars_of,
    summarize_values,
)
from ripe_mambaspike.studies.study import PaperValue, load_study
from ripe_mambaspike.train.statistics import holm_adjusted, mean_interval

GESTURE = [97.73, 98.11, 98.11, 98.48, 98.48]  # the paper's five seeds
OTHER = [97.35, 97.73, 97.35, 97.73, 97.73]


def test_mean_and_interval_of_the_papers_seeds():
    found = summarize_values(GESTURE)
    assert (found.n, round(found.mean, 2), round(found.sd, 2)) == (5, 98.18, 0.31)
    low, high = stats.t.interval(0.95, 4, loc=found.mean, scale=stats.sem(GESTURE))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_a_single_run_has_no_spread_and_no_p():
    found = summarize_values([98.48])
    assert (found.n, found.mean, found.sd, found.low, found.high) == (1, 98.48, None, None, None)
    assert mean_interval([1.0]) is None
    assert summarize_values([]) is None
    effect = effect_of([98.48], GESTURE)
    assert effect.delta == pytest.approx(98.48 - 98.182)
    assert (effect.p, effect.stars, effect.low, effect.sigmas) == (None, None, None, None)
    assert effect_of([], GESTURE) is None


def test_an_effect_is_welchs():
    effect = effect_of(OTHER, GESTURE)
    found = stats.ttest_ind(OTHER, GESTURE, equal_var=False)
    interval = found.confidence_interval(0.95)
    assert effect.p == pytest.approx(found.pvalue)
    assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high))
    assert effect.sigmas == pytest.approx(abs(effect.delta) / summarize_values(GESTURE).sd)
    assert effect.stars == "**"
    assert effect.low < effect.delta < effect.high < 0


def test_groups_that_do_not_vary_have_no_p():
    effect = effect_of([50.0, 50.0], [50.0, 50.0])
    assert (effect.delta, effect.p) == (0.0, None)


def test_holm():
    """Smallest times three, next times two, and never less than the one before."""
    assert holm_adjusted([0.04, None, 0.01, 0.03]) == pytest.approx([0.06, None, 0.03, 0.06], nan_ok=True)
    assert holm_adjusted([0.9, 0.8]) == [1.0, 1.0]
    assert holm_adjusted([]) == []


@pytest.mark.parametrize(("p", "stars"), [(0.0009, "***"), (0.001, "**"), (0.04, "*"), (0.05, "n.s.")])
def test_stars(p, stars):
    assert stars_of(p) == stars


WORSE, BETTER, SAME = effect_of(OTHER, GESTURE), effect_of(GESTURE, OTHER), effect_of(GESTURE, [*GESTURE[1:], 97.8])


@pytest.mark.parametrize(
    ("paper", "effect", "verdict"),
    [
        ({"delta": -3.0, "significant": True}, WORSE, "same direction"),
        ({"delta": -3.0, "significant": True}, BETTER, "opposite direction"),
        ({"delta": -3.0, "significant": True}, SAME, "not resolved"),
        ({"delta": -3.0}, WORSE, "same direction"),
        ({"delta": -0.2, "significant": False}, SAME, "no difference shown, none printed"),
        ({"delta": -0.2, "significant": False}, WORSE, "a difference shown, none printed"),
        ({"delta": 0.0}, SAME, "no difference shown, none printed"),
        ({"significant": False}, WORSE, "a difference shown, none printed"),
        ({"delta": -3.0, "significant": True}, effect_of([97.0], GESTURE), "too few runs"),
        ({"top1": 98.0}, WORSE, None),
        ({"delta": -3.0}, None, None),
    ],
)
def test_verdicts(paper, effect, verdict):
    assert judge(PaperValue(**paper), effect) == verdict


def test_the_papers_value_of_the_dataset_that_a_set_stands_for():
    study = load_study("components")
    arm = study.arm("no-attention")
    assert paper_value(study, arm, "ncaltech101")[1].delta == -3.16
    ours, reference = summarize_values([75.0, 76.0, 74.5]), summarize_values([78.0, 79.0, 78.4])
    found = compare_with_paper(study, arm, "sim-caltech101", ours, reference, effect_of(ours.values, reference.values))
    assert (found.dataset, found.counterpart, found.same_sign) == ("ncaltech101", True, True)
    assert found.within_two_sd is (abs(-3.3 + 3.16) <= 2 * math.hypot(ours.sd, reference.sd))
    far = compare_with_paper(study, arm, "sim-caltech101", ours, reference, effect_of([60.0, 61.0], reference.values))
    assert far.within_two_sd is False


def test_a_dataset_without_a_value_is_compared_with_another_and_says_so():
    study = load_study("tokens")
    found = compare_with_paper(study, study.arm("eighth"), "sim-cifar10", None, None, None)
    assert (found.dataset, found.counterpart, found.delta) == ("dvsgesture", False, -0.75)
    ours, reference = summarize_values([75.0, 76.0, 74.5]), summarize_values([78.0, 79.0, 78.4])
    effect = effect_of(ours.values, reference.values)
    elsewhere, there = (
        compare_with_paper(study, study.arm("eighth"), one, ours, reference, effect)
        for one in ("sim-cifar10", "gestures-hard")
    )
    assert (elsewhere.same_sign, elsewhere.verdict) == (True, None)  # the paper says nothing of CIFAR10-DVS
    assert (there.same_sign, there.verdict) == (True, "same direction")
    assert (
        compare_with_paper(load_study("widths"), load_study("widths").arm("half"), "sim-cifar10", None, None, None)
        is None
    )


def test_peers_have_the_rows_of_table_1():
    study = load_study("peers")
    for name, dataset, accuracy, delta in (
        ("ours", "cifar10dvs", 81.40, None),
        ("qkformer", "cifar10dvs", 84.00, 2.60),
        ("mamba-spike", "cifar10dvs", 65.30, -16.10),
        ("ours", "dailydvs200", 45.74, None),
        ("spikmamba", "dvsgesture", 99.01, 0.53),
    ):
        where, value = paper_value(study, study.arm(name), dataset)
        assert (where, value.top1) == (dataset, accuracy)
        assert value.delta == (None if delta is None else pytest.approx(delta))
    assert paper_value(study, study.arm("cnn-gru"), "cifar10dvs") is None


def test_equal_means_have_an_interval_too():
    found = effect_of([1.0, 3.0], [2.0, 2.0])
    assert found.delta == 0
    assert found.high == -found.low == pytest.approx(stats.t.ppf(0.975, 1))  # the standard error is 1
