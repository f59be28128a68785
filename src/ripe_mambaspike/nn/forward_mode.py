"""The mode of one forward pass: passed explicitly, so that no module has a hidden mode."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ForwardMode:
    """A hard pass spikes; a relaxed one replaces every step by a sigmoid of the same sharpness.

    In evaluation a network in the training form computes with its deployed kernels, fused on the fly from its branches
    and norms: evaluation is bit-identical to the deployed network. A literal pass runs every branch and norm instead;
    fusion is verified against it.
    """

    relaxed: bool = False
    sharpness: float = 2.0  # α of the surrogate gradient and of the relaxation
    track_statistics: bool = True  # in training, whether this pass updates the running statistics
    warm_up: bool = True  # in training, correct the running statistics for their initial 0 and 1
    literal: bool = False  # in evaluation, run branches and norms separately


HARD = ForwardMode()
