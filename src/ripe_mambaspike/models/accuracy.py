"""How well a network classifies the clips of a split, always in float32 so that the result is reproducible.

`result.json`, which a training run leaves in its folder, holds the evaluation of its network on the test clips.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.errors import DataError, WeightsError
from ripe_mambaspike.models.base import Model, Output, clip_logits
from ripe_mambaspike.nn.eval_mode import eval_mode
from ripe_mambaspike.schema import read_json

EVAL_BATCH = 32  # fixed: another batch size may round differently
TOP_K = 5  # for top-5 accuracy
RESULT_FILE = "result.json"
BEST_TEST_EPOCH = "best test epoch: selected on the test clips (paper protocol)"  # stands beside every such accuracy
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]


class Evaluation(NamedTuple):
    """Results over n clips; confusion counts clips [true, predicted]."""

    confusion: NDArray[np.int64]
    among_five: int  # clips whose label is among the top five
    loss: float  # mean cross-entropy of the clip's logits
    rates: list[float]  # mean firing rate of every spiking layer; empty for a network that has none

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
        """Top-5 accuracy; None for five classes or fewer, where it is always 1."""
        return None if has_trivial_top5(len(self.confusion)) else self.among_five / self.n

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


def has_trivial_top5(num_classes: int) -> bool:
    """Whether top-5 accuracy is always 1."""
    return num_classes <= TOP_K


@torch.no_grad()
def evaluate_batches(
    model: Model,
    batches: Iterable[tuple[Tensor, Tensor]],
    num_classes: int,
    run: Callable[[Tensor], Output] | None = None,
) -> Evaluation:
    """Evaluate on batches of clips [B, T, 2, H, W] and labels [B], on the network's device.

    `run` is how the network is run, such as its captured form; by default `model.run`.
    """
    confusion = np.zeros((num_classes, num_classes), np.int64)
    among_five, loss = 0, 0.0
    rates: Tensor | None = None
    compute: Any = run or model.run
    with eval_mode(model), torch.autocast(next(model.parameters()).device.type, enabled=False):
        for x, y in batches:
            if not len(y):
                continue
            out: Output = compute(x)
            logits = clip_logits(out.logits)
            np.add.at(confusion, (y.cpu().numpy(), logits.argmax(-1).cpu().numpy()), 1)
            five = logits.topk(min(TOP_K, num_classes), -1).indices
            among_five += int((five == y[:, None]).any(-1).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
            measured = out.rates.double() * len(y)
            rates = measured if rates is None else rates + measured
    total = int(confusion.sum())
    if not total:
        raise DataError("split: expected at least one clip, got none", field="split")
    return Evaluation(confusion, among_five, loss / total, [] if rates is None else (rates / total).tolist())


class ClassAccuracy(msgspec.Struct, frozen=True):
    """The number of clips of a class that were classified correctly."""

    name: str
    n: Annotated[int, Meta(ge=0)]
    correct: Annotated[int, Meta(ge=0)]


class StartedFrom(msgspec.Struct, frozen=True, kw_only=True):
    """The trained network that a run started from."""

    name: str  # of a shipped network, or a folder
    sha256: str  # of its weights
    form: str
    new_head: bool  # its classes were others, so the last layer began with fresh weights
    freeze: str
    lr_scale: float  # of all but the head
    expanded: bool = False  # from its deployed to its training form
    made_causal: bool = False  # from a network that reads in both directions


EARLIER_FIELDS = {"cut": "partition"}  # of a result that an earlier version wrote


class TrainingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a training run: the selected network on the test clips."""

    format: Literal["ripe-result"]
    version: Literal[1]
    name: str  # of the recipe
    protocol: Literal["validation", "paper"]
    picked_on: Literal["val", "test", "last epoch"]
    epoch: Positive
    set: str
    partition: str | None
    store: str | None = None  # None for a run of an earlier version
    split: str = "test"
    clips: dict[str, int] = {}  # of train, with extra datasets, val and test; empty for a run of an earlier version
    top1: Share | None  # None: there was no test split
    top5: Share | None = None
    n: Count  # test clips
    loss: float | None = None
    per_class: list[ClassAccuracy] = []
    confusion: list[list[int]] = []
    rates: list[float] = []
    seed: int = 0
    folds: int | None = None
    fold: int | None = None
    parameters: dict[str, int] = {}
    seconds: float = 0.0
    threads: int | None = None
    commit: str | None = None
    warnings: list[str] = []
    started_from: StartedFrom | None = None  # None: fresh weights
    left_out: list[str] = []  # settings of the recipe that the network cannot use, with the reason

    @property
    def tested_top1(self) -> float:
        """The accuracy of a run that was tested."""
        if self.top1 is None:
            raise DataError.expected("top1", f"an accuracy of the run '{self.name}'", "none: it had no test split")
        return self.top1

    def to_dict(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)


def read_result(folder: Path) -> TrainingResult | None:
    """The result of the run in a folder; None if it has none yet."""
    path = folder / RESULT_FILE
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WeightsError(f"{path}: expected a readable file, got {error.strerror}", path=path) from error
    hint = "without the file, the run is tested again"
    result = read_json(path, TrainingResult, error=WeightsError, hint=hint, renamed=EARLIER_FIELDS)
    if result.top1 is None and result.n:
        raise WeightsError.expected("top1", f"an accuracy of {result.n} test clips", None, path=path, hint=hint)
    if result.top1 is not None and not result.n:
        raise WeightsError.expected("n", "at least 1 with an accuracy", result.n, path=path, hint=hint)
    return result
