"""Temperature scaling: logits divided by one number, so that probabilities say how often a network is right.

    p = softmax(z / T)         Guo et al., 2017 (arXiv:1706.04599)
    NLL = −mean log p_y        T makes it minimal
    ECE = Σ_b n_b/n · |accuracy_b − confidence_b|   over bins b of the highest probability

z are the logits of a clip [N, classes], averaged over its steps, y its class [N].
"""

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from ripe_mambaspike.errors import InputError

MAX_TEMPERATURE = 1000.0
ECE_BINS = 15


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    """The mean of −log p of the labels [N], from logits [N, classes], in float64."""
    return float(F.cross_entropy(logits.double(), labels))


def expected_calibration_error(logits: Tensor, labels: Tensor, bins: int = ECE_BINS) -> float:
    """The mean difference of confidence and accuracy in bins of equal width, weighted by their clips."""
    confidence, answers = torch.softmax(logits.double(), -1).max(-1)
    right = (answers == labels).double().numpy()
    number = np.minimum((confidence.numpy() * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(number, weights=right - confidence.numpy(), minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the lowest NLL, for logits [N, classes] and labels [N].

    It is 1 where every clip is right: then NLL falls without end as T approaches 0, and the clips say nothing about T.
    """
    wide = logits.double()
    if bool((wide.argmax(-1) == labels).all()):
        return 1.0
    # NLL is convex in 1/T, so in log T it has one minimum
    limit = float(np.log(MAX_TEMPERATURE))
    found = minimize_scalar(
        lambda exponent: negative_log_likelihood(wide / float(np.exp(exponent)), labels),
        bounds=(-limit, limit), method="bounded", options={"xatol": 1e-7},
    )  # fmt: skip
    temperature = float(np.exp(found.x))
    if temperature > 0.9 * MAX_TEMPERATURE:
        raise InputError.expected("clips", "ones that the network classifies better than chance", "no better ones")
    return temperature
