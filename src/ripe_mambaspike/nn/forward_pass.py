"""How one pass through the network is run: handed down explicitly, so that no module hides a mode."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """A hard pass spikes; a relaxed one replaces every step by a sigmoid of the same sharpness."""

    relaxed: bool = False
    sharpness: float = 2.0  # α of the surrogate gradient and of the relaxation
    track_statistics: bool = True  # in training, whether running statistics follow this pass


HARD = Pass()
