"""The result of `evaluate`, and clips whose time steps are shuffled."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.inference.error_pictures import ErrorPictures
from ripe_mambaspike.inference.evaluate_unknown import UnknownEvaluation
from ripe_mambaspike.inference.evaluate_windows import WindowAccuracy
from ripe_mambaspike.models.accuracy import Evaluation


@dataclass(frozen=True)
class CheckpointEvaluation:
    """What was evaluated on which data, and how well it did."""

    checkpoint: str
    form: str  # of the network: training or deployed
    set: str
    partition: str
    store: str  # key of the prepared dataset
    trained_on_store: str | None
    split: str
    shuffled: bool
    selected_on_test: bool  # whether these test clips selected the network (paper protocol): its best test epoch
    classes: tuple[str, ...]
    scores: Evaluation
    note: str | None  # where the data is not, or not known to be, what the network was trained on
    unknown: UnknownEvaluation | None = None  # against recordings of other classes
    windows: tuple[WindowAccuracy, ...] = ()  # parts of the recordings, by length
    errors: ErrorPictures | None = None  # what was drawn

    def to_dict(self) -> dict[str, Any]:
        """For a JSON document."""
        kept = ["checkpoint", "form", "set", "partition", "store", "trained_on_store", "split", "shuffled"]
        kept.append("selected_on_test")
        document = {**{name: getattr(self, name) for name in kept}, **self.scores.to_dict(self.classes)}
        if self.unknown is not None:
            document["unknown"] = self.unknown.to_dict()
        if self.windows:
            document["windows"] = [one.to_dict() for one in self.windows]
        if self.errors is not None:
            document["errors"] = self.errors.to_dict()
        return document


def shuffled_steps(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same clips [B, T, 2, H, W], each with its own order of time steps; always the same orders."""
    generator = torch.Generator().manual_seed(0)
    for x, y in batches:
        order = torch.rand(x.shape[:2], generator=generator).argsort(1).to(x.device)
        yield x.gather(1, order[:, :, None, None, None].expand_as(x)), y
