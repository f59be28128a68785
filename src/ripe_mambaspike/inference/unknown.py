"""Telling recordings of classes that a network never saw from known ones, by a score: high for known, low for unknown.

    p_c = softmax(z)_c                    z: the logits of a clip, averaged over its steps [classes]
    probability  max_c p_c                Hendrycks and Gimpel, 2017 (arXiv:1610.02136)
    energy       log Σ_c exp(z_c)         Liu et al., 2020 (arXiv:2010.03759), negated: high for known

A rule is a score and a threshold: what scores below it is unknown.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import rankdata
from torch import Tensor

from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.models.labels import UnknownRule

MARGIN = 1e-6  # below the lowest score, by which two ways of computing it may differ


def probability_score(logits: Tensor) -> Tensor:
    """Logits of clips [N, classes] → the probability of the most likely class [N]."""
    return torch.softmax(logits, -1).max(-1).values


def energy_score(logits: Tensor) -> Tensor:
    """Logits of clips [N, classes] → log Σ exp [N], the negative free energy."""
    return torch.logsumexp(logits, -1)


SCORES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"probability": probability_score, "energy": energy_score}
)


def score_of(name: str, logits: Tensor) -> Tensor:
    """The scores [N] of clips by the name of the score, from logits [N, classes]."""
    if name not in SCORES:
        raise ConfigError.expected("score", f"one of {', '.join(SCORES)}", repr(name))
    return SCORES[name](logits)


def threshold_for(scores: ArrayLike, keep: float) -> float:
    """The largest threshold that at least this share of the scores [N] reaches.

    It lies halfway between two scores, so that a last bit does not decide.
    """
    if not 0 < keep <= 1:
        raise ConfigError.expected("keep", "a share above 0 and at most 1", keep)
    ordered = np.sort(np.asarray(scores, np.float64))
    if not len(ordered):
        raise DataError.expected("clips", "at least one", "none")
    below = len(ordered) - math.ceil(keep * len(ordered) - 1e-9)  # how many may be left out
    first = float(ordered[below])
    lower = ordered[:below][ordered[:below] < first]
    return (float(lower[-1]) + first) / 2 if len(lower) else first - MARGIN * max(1.0, abs(first))


def auroc(known: ArrayLike, unknown: ArrayLike) -> float:
    """The share of pairs of a known [N] and an unknown score [M] in which the known one is higher; ties count half."""
    first, second = np.asarray(known, np.float64), np.asarray(unknown, np.float64)
    if not len(first) or not len(second):
        raise DataError.expected("scores", "at least one known and one unknown recording", "none")
    ranks = rankdata(np.concatenate((first, second)))[: len(first)]
    return float((ranks.sum() - len(first) * (len(first) + 1) / 2) / (len(first) * len(second)))


def apply_rule(rule: UnknownRule | None, logits: Tensor) -> tuple[float | None, bool]:
    """The score of one clip's logits [classes], and whether it is unknown; (None, False) without a rule."""
    if rule is None:
        return None, False
    score = float(score_of(rule.score, logits))
    return score, score < rule.threshold
