"""Groups of seeds: the paper's own means and spreads, and Welch's t-test by hand."""

import math

import pytest

from ripe_mambaspike.models.accuracy import ClassAccuracy, TrainingResult
from ripe_mambaspike.train.statistics import PooledAccuracy, group_statistics, pool_results, welch_test

PAPER = {
    "dvsgesture": ([97.73, 98.11, 98.11, 98.48, 98.48], 98.18, 0.31, 98.48),
    "cifar10dvs": ([81.1, 81.3, 81.3, 81.3, 81.4], 81.28, 0.11, 81.4),
    "dailydvs200 top-1": ([45.91, 45.74, 45.91, 45.05, 46.08], 45.74, 0.40, 46.08),
    "dailydvs200 top-5": ([69.38, 69.58, 69.73, 68.75, 70.07], 69.50, 0.49, 70.07),
}


@pytest.mark.parametrize("case", PAPER)
def test_the_papers_seeds(case):
    values, mean, std, best = PAPER[case]
    made = group_statistics(values)
    assert (round(made.mean, 2), round(made.std, 2), made.best, made.values) == (mean, std, best, tuple(values))


def test_few_values():
    assert group_statistics([]) is None
    assert group_statistics([3.0]).std is None
    assert group_statistics([2.0, 2.0]).std == 0
    assert group_statistics([0.1] * 10).mean == pytest.approx(0.1, rel=1e-15)


def test_welch_by_hand():
    """Variances 1 and 4, so errors 1/3 and 4/3 of the means."""
    test = welch_test([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert test.difference == -2
    assert test.t == pytest.approx(-2 / math.sqrt(5 / 3))
    assert test.freedom == pytest.approx((5 / 3) ** 2 / ((1 / 3) ** 2 / 2 + (4 / 3) ** 2 / 2))
    turned = welch_test([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (turned.t, turned.p) == (pytest.approx(-test.t), pytest.approx(test.p))


def test_welch_of_equal_spreads_in_closed_form():
    """Two values each: 2 degrees of freedom, where p = 1 − t/√(2 + t²)."""
    test = welch_test([10.0, 12.0], [1.0, 3.0])
    assert test.freedom == pytest.approx(2)
    assert test.p == pytest.approx(1 - test.t / math.sqrt(2 + test.t**2), rel=1e-9)


def test_welch_of_the_papers_groups():
    """Gestures and objects differ; a group does not differ from itself."""
    assert welch_test(PAPER["dvsgesture"][0], PAPER["cifar10dvs"][0]).p < 1e-8
    same = welch_test(PAPER["cifar10dvs"][0], PAPER["cifar10dvs"][0])
    assert (same.t, same.p) == (0, 1)


@pytest.mark.parametrize(
    "groups", [([], [1.0, 2.0]), ([1.0], [1.0, 2.0]), ([1.0, 1.0], [2.0, 2.0]), ([0.1 + 0.2, 0.3, 0.3], [0.5, 0.5])]
)
def test_no_test_where_nothing_varies_but_rounding(groups):
    assert welch_test(*groups) is None


def test_one_group_that_does_not_vary():
    test = welch_test([5.0, 5.0, 5.0], [1.0, 2.0, 3.0])
    assert test.freedom == pytest.approx(2)
    assert test.t == pytest.approx(3 * math.sqrt(3))


def result(top1, top5, n, num_classes=10):
    return TrainingResult(
        format="ripe-result", version=1, name="x", protocol="validation", picked_on="val", epoch=1, set="x",
        partition=None, top1=top1, top5=top5, n=n,
        per_class=[ClassAccuracy(str(label), 1, 1) for label in range(num_classes)],
    )  # fmt: skip


def test_folds_are_pooled_over_their_clips():
    made = pool_results([result(1 / 3, 1.0, 3), result(0.9, 0.9, 10)])
    assert made == PooledAccuracy(13, pytest.approx(1000 / 13), pytest.approx(1200 / 13))
    assert pool_results([result(0.5, 1.0, 4, num_classes=4)]).top5 is None  # of an older result
    assert pool_results([result(0.5, None, 2)]) == PooledAccuracy(2, 50.0, None)
