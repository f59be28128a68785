"""How well a network calls the clips of a part. Always in float32, so that the number can be repeated."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.errors import DataError
from ripe_mambaspike.models.base import Model, Output, clip_logits
from ripe_mambaspike.nn.evaluation import evaluation
from ripe_mambaspike.train.statistics import TOP, too_few_for_top5

BATCH = 32  # clips at a time, always: another number may round to another call


class Evaluation(NamedTuple):
    """Over n clips; confusion counts clips [true, predicted]."""

    confusion: NDArray[np.int64]
    among_five: int  # clips whose label is among the five likeliest
    loss: float  # mean cross-entropy of the clip's logits
    rates: list[float]  # mean firing rate of every spiking layer; empty for a network that tells none

    @property
    def n(self) -> int:
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        return int(np.trace(self.confusion))

    @property
    def top1(self) -> float:
        return self.correct / self.n

    @property
    def top5(self) -> float | None:
        """None where there are so few classes that it is always 1."""
        return None if too_few_for_top5(len(self.confusion)) else self.among_five / self.n

    def to_dict(self, names: tuple[str, ...]) -> dict[str, Any]:
        """top1, top5 (None for five classes or fewer), n, loss, per_class, confusion, rates; shares from 0 to 1."""
        return {
            "top1": self.top1,
            "top5": self.top5,
            "n": self.n,
            "loss": self.loss,
            "per_class": [
                {"name": name, "n": int(row.sum()), "correct": int(row[label])}
                for label, (name, row) in enumerate(zip(names, self.confusion, strict=True))
            ],
            "confusion": self.confusion.tolist(),
            "rates": self.rates,
        }


@torch.no_grad()
def evaluate(model: Model, batches: Iterable[tuple[Tensor, Tensor]], classes: int) -> Evaluation:
    """Batches of clips [B, T, 2, H, W] and labels [B], on the network's device."""
    confusion = np.zeros((classes, classes), np.int64)
    among_five, loss = 0, 0.0
    rates: Tensor | None = None
    run: Any = model.run
    with evaluation(model), torch.autocast(next(model.parameters()).device.type, enabled=False):
        for x, y in batches:
            if not len(y):
                continue
            out: Output = run(x)
            logits = clip_logits(out.logits)
            np.add.at(confusion, (y.cpu().numpy(), logits.argmax(-1).cpu().numpy()), 1)
            five = logits.topk(min(TOP, classes), -1).indices
            among_five += int((five == y[:, None]).any(-1).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
            measured = out.rates.double() * len(y)
            rates = measured if rates is None else rates + measured
    total = int(confusion.sum())
    if not total:
        raise DataError("the part has no clips; one with some is wanted")
    return Evaluation(confusion, among_five, loss / total, [] if rates is None else (rates / total).tolist())
