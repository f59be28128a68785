"""Groups of seeds: the paper's own means and spreads, and Student's distribution by other means."""

import math

import pytest

from ripe_mambaspike.train.statistics import group, incomplete_beta, mean, pool, std, two_sided, welch

PAPER = {
    "dvsgesture": ([97.73, 98.11, 98.11, 98.48, 98.48], 98.18, 0.31, 98.48),
    "cifar10dvs": ([81.1, 81.3, 81.3, 81.3, 81.4], 81.28, 0.11, 81.4),
    "dailydvs200 top-1": ([45.91, 45.74, 45.91, 45.05, 46.08], 45.74, 0.40, 46.08),
    "dailydvs200 top-5": ([69.38, 69.58, 69.73, 68.75, 70.07], 69.50, 0.49, 70.07),
}


@pytest.mark.parametrize("case", PAPER)
def test_the_papers_seeds(case):
    values, middle, spread, best = PAPER[case]
    made = group(values)
    assert round(made.mean, 2) == middle
    assert round(made.std, 2) == spread
    assert made.best == best
    assert made.values == tuple(values)


def test_few_values():
    assert group([]) is None
    assert group([3.0]).std is None
    assert std([2.0, 2.0]) == 0
    assert mean([0.1] * 10) == pytest.approx(0.1, rel=1e-15)


CLOSED = {  # two-sided p by elementary functions
    1: lambda t: 1 - 2 / math.pi * math.atan(t),
    2: lambda t: 1 - t / math.sqrt(2 + t * t),
    3: lambda t: 1 - 2 / math.pi * (math.atan(t / math.sqrt(3)) + t * math.sqrt(3) / (3 + t * t)),
    4: lambda t: 1 - t * (6 + t * t) / (4 + t * t) ** 1.5,
}


@pytest.mark.parametrize("freedom", CLOSED)
@pytest.mark.parametrize("t", [0.0, 1e-3, 0.3, 1.0, 2.5, 7.0])
def test_students_distribution_in_closed_form(freedom, t):
    assert two_sided(t, freedom) == pytest.approx(CLOSED[freedom](t), rel=1e-9, abs=1e-13)
    assert two_sided(-t, freedom) == two_sided(t, freedom)


@pytest.mark.parametrize(("freedom", "t"), [(4.37, 0.8), (5.915, 6.26), (7.9, 2.1), (8.0, 14.1), (123.4, 1.97)])
def test_students_distribution_by_integration(freedom, t):
    """Simpson's rule on the density between −t and t."""
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)

    def density(x):
        return math.exp(log_scale - (freedom + 1) / 2 * math.log1p(x * x / freedom))

    count = 40_000
    step = t / count
    inside = density(0) + density(t) + math.fsum((4 if i % 2 else 2) * density(i * step) for i in range(1, count))
    assert two_sided(t, freedom) == pytest.approx(1 - 2 * inside * step / 3, abs=1e-12)


def test_the_incomplete_beta_function():
    assert incomplete_beta(2, 3, 0) == 0
    assert incomplete_beta(2, 3, 1) == 1
    for x in (0.01, 0.3, 0.5, 0.77, 0.999):
        assert incomplete_beta(1, 1, x) == pytest.approx(x, rel=1e-13)
        assert incomplete_beta(1, 4.5, x) == pytest.approx(1 - (1 - x) ** 4.5, rel=1e-12)
        # A whole a and b: the share of binomial outcomes.
        binomial = sum(math.comb(8, k) * x**k * (1 - x) ** (8 - k) for k in range(5, 9))
        assert incomplete_beta(5, 4, x) == pytest.approx(binomial, rel=1e-11)
        assert incomplete_beta(2.5, 0.7, x) + incomplete_beta(0.7, 2.5, 1 - x) == pytest.approx(1, rel=1e-13)
    for wrong in ((0, 1, 0.5), (1, -1, 0.5), (1, 1, 1.5), (1, 1, math.nan)):
        with pytest.raises(ValueError, match="wanted"):
            incomplete_beta(*wrong)


def test_against_other_libraries():
    mpmath = pytest.importorskip("mpmath")
    for freedom in (0.7, 3.3, 8.0, 41.0, 900.0):
        for t in (0.01, 0.9, 3.0, 20.0):
            wanted = mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True)
            assert two_sided(t, freedom) == pytest.approx(float(wanted), rel=1e-9)


def test_welch_by_hand():
    """Variances 1 and 4, so errors 1/3 and 4/3 of the means."""
    test = welch([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert test.difference == -2
    assert test.t == pytest.approx(-2 / math.sqrt(5 / 3))
    assert test.freedom == pytest.approx((5 / 3) ** 2 / ((1 / 3) ** 2 / 2 + (4 / 3) ** 2 / 2))
    assert test.p == pytest.approx(two_sided(test.t, test.freedom))
    turned = welch([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (turned.t, turned.p) == (pytest.approx(-test.t), pytest.approx(test.p))


def test_welch_of_equal_spreads_has_the_pooled_degrees_of_freedom():
    test = welch([0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0])
    assert test.freedom == pytest.approx(6)
    assert 0 < test.p < 1e-4


def test_welch_of_the_papers_groups():
    """Gestures against the objects: far apart. A group against itself: no difference."""
    far = welch(PAPER["dvsgesture"][0], PAPER["cifar10dvs"][0])
    assert far.p < 1e-8
    same = welch(PAPER["cifar10dvs"][0], PAPER["cifar10dvs"][0])
    assert (same.t, same.p) == (0, 1)


@pytest.mark.parametrize("groups", [([], [1.0, 2.0]), ([1.0], [1.0, 2.0]), ([1.0, 1.0], [2.0, 2.0])])
def test_no_test_where_nothing_varies(groups):
    assert welch(*groups) is None


def test_one_group_that_does_not_vary():
    test = welch([5.0, 5.0, 5.0], [1.0, 2.0, 3.0])
    assert test.freedom == pytest.approx(2)
    assert test.t == pytest.approx(3 * math.sqrt(3))


def test_values_that_differ_by_rounding_alone_do_not_vary():
    assert welch([0.1 + 0.2, 0.3, 0.3], [0.5, 0.5]) is None


def test_folds_are_pooled_over_their_clips():
    made = pool([{"top1": 1 / 3, "top5": 1.0, "n": 3}, {"top1": 0.9, "top5": 0.9, "n": 10}])
    assert made == {"n": 13, "top1": pytest.approx(1000 / 13), "top5": pytest.approx(1200 / 13)}
    four = [{"name": str(label), "n": 1, "correct": 1} for label in range(4)]
    assert pool([{"top1": 0.5, "top5": 1.0, "n": 4, "per_class": four}])["top5"] is None  # of an older result
    assert pool([{"top1": 0.5, "top5": None, "n": 2}]) == {"n": 2, "top1": 50.0, "top5": None}
