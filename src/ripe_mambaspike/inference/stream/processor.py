"""What a stream's network is run by: on overlapping windows (`windows`), or continuously (`causal`)."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.events.incremental import ClosedBin, Timeline
from ripe_mambaspike.inference.classifier import Classifier


class WindowResult(NamedTuple):
    """The network's output for the steps of a window seen so far."""

    start_us: int
    stop_us: int  # the end of the window, however much of it has been seen
    step: int
    logits: Tensor  # [1, step, classes]
    rates: tuple[float, ...]  # mean firing rate of each stage's output, or of each spiking layer
    attention: Tensor | None  # of the last step [C, h, w], if the network has one
    seconds: float  # since the bin closed


class StreamProcessor(Timeline):
    """Runs a classifier's network on closed bins, and decides where bins end."""

    def __init__(self, classifier: Classifier, window_us: int, hop_us: int, early: bool) -> None:
        self.model, self.grid, self.time_steps = classifier.model.eval(), classifier.grid, classifier.time_steps
        self.window_us, self.hop_us, self.early, self.binary = window_us, hop_us, early, classifier.binary
        self.silent = 0  # windows that ended without an event; they get no prediction

    def process(self, part: ClosedBin) -> list[WindowResult]:
        """The results that a closed bin completes."""
        raise NotImplementedError

    def finish_pending(self) -> None:
        """Run the work that no prediction waits for."""

    def as_input(self, counts: NDArray[np.float32]) -> Tensor:
        """Counts [2, H, W] as the network reads them."""
        return torch.from_numpy((counts > 0).astype(np.float32) if self.binary else counts)
