"""Scores, thresholds and AUROC of known and unknown recordings."""

import math

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.inference.unknown import (
    apply_rule,
    auroc,
    energy_score,
    probability_score,
    score_of,
    threshold_for,
)
from ripe_mambaspike.models.labels import UnknownRule


def brute_force(known, unknown):
    pairs = [(a > b) + 0.5 * (a == b) for a in known for b in unknown]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("levels", [3, 1000])
def test_auroc_is_the_share_of_pairs_in_order_and_ties_count_half(levels):
    draw = np.random.default_rng(levels)
    for known, unknown in ((1, 1), (7, 4), (30, 53)):
        first = draw.integers(0, levels, known) / levels
        second = draw.integers(0, levels, unknown) / levels - 0.1
        assert auroc(first, second) == pytest.approx(brute_force(first, second), abs=1e-12)
    assert auroc([1.0, 2.0], [0.0]) == 1
    assert auroc([0.0], [1.0, 2.0]) == 0
    assert auroc([1.0] * 5, [1.0] * 3) == 0.5
    with raises(DataError, field="scores"):
        auroc([1.0], [])


def test_scores_by_hand():
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0]])
    total = math.exp(2) + 1 + math.exp(-1)
    assert probability_score(logits).tolist() == pytest.approx([math.exp(2) / total, 1 / 3])
    assert energy_score(logits).tolist() == pytest.approx([math.log(total), math.log(3)])
    with raises(ConfigError, field="score"):
        score_of("entropy", logits)


@pytest.mark.parametrize("keep", [0.05, 0.5, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("count", [1, 7, 20, 100])
def test_a_threshold_keeps_the_share_and_no_more_than_needed(keep, count):
    scores = np.random.default_rng(count).permutation(np.arange(count)) / count
    kept = int((scores >= threshold_for(scores, keep)).sum())
    assert kept >= keep * count - 1e-9
    assert kept - 1 < keep * count  # one clip fewer would be too few


def test_a_threshold_among_ties_keeps_them_all():
    scores = [0.2, 0.5, 0.5, 0.5]
    threshold = threshold_for(scores, 0.5)
    assert 0.2 < threshold < 0.5
    assert threshold_for([0.5] * 4, 0.5) < 0.5
    with raises(ConfigError, field="keep"):
        threshold_for(scores, 0)
    with raises(DataError, field="clips"):
        threshold_for([], 0.5)


def test_a_recording_is_judged_by_its_rule():
    logits = torch.tensor([2.0, 0.0])
    share = 1 / (1 + math.exp(-2))
    for margin, unknown in ((-1e-3, False), (1e-3, True)):
        rule = UnknownRule(score="probability", threshold=share + margin, keep=0.9)
        assert apply_rule(rule, logits) == (pytest.approx(share), unknown)
    assert apply_rule(None, logits) == (None, False)
