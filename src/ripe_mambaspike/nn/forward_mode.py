"""How one pass through the network is run: handed down explicitly, so that no module hides a mode."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ForwardMode:
    """A hard pass spikes; a relaxed one replaces every step by a sigmoid of the same sharpness.

    In evaluation a training network computes with the kernels it will be deployed with, made on the way from its
    branches and norms: what is evaluated is what is deployed, to the last bit. A literal pass runs every branch and
    norm as written instead; fusion is verified against that.
    """

    relaxed: bool = False
    sharpness: float = 2.0  # α of the surrogate gradient and of the relaxation
    track_statistics: bool = True  # in training, whether running statistics follow this pass
    warm_up: bool = True  # in training, take the share of the norms' initial 0 and 1 off their running statistics
    literal: bool = False  # in evaluation, run branches and norms one by one


HARD = ForwardMode()
