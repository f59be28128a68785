"""The training loss: `L = (1 − w)·TET(z_d) + w·TET(z_c) + λ_SGC·MSE(z_d, z_c) + λ_L1·r`.

This is the form `release`, with which the paper's figures were made: the relaxed pass runs even where λ_SGC = 0. The
paper prints w = 0: in the form `paper` the relaxed pass serves λ_SGC alone, and where that is 0 there is none.

Glossary: z_d, z_c logits of the hard (spiking) and the relaxed pass [B, T, classes]; w `relaxed_share`; TET's λ
`spread`; λ_SGC `consistency`; λ_L1 `rates`; r the mean firing rate of the hard pass's layers. Everything is computed
in float32 at least, whatever the precision of the logits.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.base import Output, clip_logits

MIN_RELAXED_SHARE, FIRST_RELAXED_SHARE = 0.1, 0.5


@dataclass(frozen=True)
class LossWeights:
    """Weights of the terms of the objective; the defaults are the DVS-Gesture recipe's at its first epoch."""

    relaxed_share: float = FIRST_RELAXED_SHARE  # w, see `relaxed_weight`; 0 in the form `paper`
    spread: float = 5e-3  # λ of TET
    consistency: float = 1.0  # λ_SGC
    rates: float = 1e-4  # λ_L1
    label_smoothing: float = 0.1


class LossTerms(NamedTuple):
    """The loss and its unweighted terms; None without a relaxed pass."""

    loss: Tensor
    hard: Tensor  # TET of the hard pass
    relaxed: Tensor | None  # TET of the relaxed pass
    consistency: Tensor | None  # mean square between the logits of both
    rate: Tensor  # mean of the layers' rates
    rates: Tensor  # of every layer of the hard pass, in order [layers]
    right: Tensor  # accuracy of the hard pass, against the most likely target
    norm: Tensor | None = None  # of the whole gradient before it is clipped, once there is one

    def detach(self) -> "LossTerms":
        return LossTerms(*(None if term is None else term.detach() for term in self))  # type: ignore[arg-type]


def relaxed_weight(epoch: int, epochs: int) -> float:
    """Share of the relaxed pass in the loss: from 1/2 down to 1/10, linear in the epoch (counted from 0)."""
    if epochs < 1 or not 0 <= epoch < epochs:
        raise ConfigError.expected("epoch", f"an int from 0 to {max(1, epochs) - 1}", epoch)
    return max(MIN_RELAXED_SHARE, FIRST_RELAXED_SHARE * (1 - epoch / epochs))


def tet(logits: Tensor, targets: Tensor, spread: float, label_smoothing: float = 0.0) -> Tensor:
    """`mean_t CE(z_t, y) + λ·mean((z − mean_t z)²)` of logits [B, T, classes].

    Targets are class indices [B] or probabilities [B, classes], the same for every step.
    """
    _check_targets(logits, targets)
    logits = _full(logits)
    steps = logits.shape[1]
    if targets.is_floating_point():
        targets = targets.to(logits.dtype)
    repeated = targets.repeat_interleave(steps, 0)
    entropy = F.cross_entropy(logits.flatten(0, 1), repeated, label_smoothing=label_smoothing)
    return entropy + spread * (logits - logits.mean(1, keepdim=True)).square().mean()


def consistency(hard: Tensor, relaxed: Tensor) -> Tensor:
    """SGC: mean square between the logits of the two passes; the gradient reaches both."""
    return (_full(hard) - _full(relaxed)).square().mean()


def rate_penalty(rates: Tensor) -> Tensor:
    """r, the mean of the layers' firing rates [layers]; 0 for a network without spikes."""
    return _full(rates).mean() if rates.numel() else rates.new_zeros(())


def objective(hard: Output, relaxed: Output | None, targets: Tensor, weights: LossWeights) -> LossTerms:
    """The loss of a hard pass and, if given, of the relaxed pass over the same clips."""
    of_hard = tet(hard.logits, targets, weights.spread, weights.label_smoothing)
    rate = rate_penalty(hard.rates)
    penalty = weights.rates * rate
    right = _share_right(hard.logits, targets)
    if relaxed is None:
        return LossTerms(of_hard + penalty, of_hard, None, None, rate, hard.rates, right)
    share = weights.relaxed_share
    of_relaxed = tet(relaxed.logits, targets, weights.spread, weights.label_smoothing)
    apart = consistency(hard.logits, relaxed.logits)
    loss = (1 - share) * of_hard + share * of_relaxed + weights.consistency * apart + penalty
    return LossTerms(loss, of_hard, of_relaxed, apart, rate, hard.rates, right)


@torch.no_grad()
def _share_right(logits: Tensor, targets: Tensor) -> Tensor:
    labels = targets.argmax(-1) if targets.is_floating_point() else targets
    return (clip_logits(logits).argmax(-1) == labels).to(torch.float32).mean()


def _full(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _check_targets(logits: Tensor, targets: Tensor) -> None:
    batch, _, classes = logits.shape
    wanted = (batch, classes) if targets.is_floating_point() else (batch,)
    if tuple(targets.shape) != wanted:
        expected = f"class indices ({batch},) or probabilities ({batch}, {classes})"
        raise InputError.expected("targets", expected, f"{targets.dtype} of shape {tuple(targets.shape)}")
