"""Callbacks of a training run."""

from typing import Any, Protocol

from ripe_mambaspike.train.checkpoint import BestEpoch
from ripe_mambaspike.train.history import Row
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.trainer import Trainer


class Callback(Protocol):
    """Receives the progress of a run."""

    def on_train_begin(self, recipe: Recipe, data: dict[str, Any], trainer: Trainer) -> None: ...
    def on_step_end(self, trainer: Trainer) -> None: ...
    def on_epoch_end(self, row: Row, best: BestEpoch | None) -> None: ...
    def on_message(self, line: str) -> None: ...


class SilentCallback:
    """Does nothing."""

    def on_train_begin(self, recipe: Recipe, data: dict[str, Any], trainer: Trainer) -> None: ...
    def on_step_end(self, trainer: Trainer) -> None: ...
    def on_epoch_end(self, row: Row, best: BestEpoch | None) -> None: ...
    def on_message(self, line: str) -> None: ...


class TrainingStopped(Exception):  # noqa: N818
    """The run was asked to stop; its state has been saved."""
