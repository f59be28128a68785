"""The accuracy of a saved network on a split of a dataset."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ripe_mambaspike.data.clips import EvalBatches
from ripe_mambaspike.errors import WeightsError
from ripe_mambaspike.inference.capture import CapturedShapes
from ripe_mambaspike.inference.checkpoint_data import (
    data_settings_of,
    open_data_for,
    split_of,
    store_note,
    trained_store,
)
from ripe_mambaspike.models.accuracy import EVAL_BATCH, Evaluation, evaluate_batches
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.labels import find_checkpoint, read_labels
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.nn.eval_mode import choose_device


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

    def to_dict(self) -> dict[str, Any]:
        """For a JSON document."""
        kept = ["checkpoint", "form", "set", "partition", "store", "trained_on_store", "split", "shuffled"]
        kept.append("selected_on_test")
        return {**{name: getattr(self, name) for name in kept}, **self.scores.to_dict(self.classes)}


def evaluate(
    checkpoint: str | Path,
    *,
    dataset: str | None = None,
    root: str | Path | None = None,
    split: Literal["train", "val", "test"] = "test",
    partition: str | None = None,
    store: str | None = None,
    shuffle: bool = False,
    device: str | None = "auto",
    model: Model | None = None,
) -> CheckpointEvaluation:
    """Evaluate the network of a run, or of a saved folder, on a split of a dataset, binned as for training.

    dataset, root, partition, store: the dataset, its folder, its way of splitting and its preparation (a key or
        "current"); by default those of training
    shuffle: put every clip's time steps into a random order, to see what the network knows from time
    device: "auto", "cpu" or "cuda"
    model: evaluate this network instead of the saved one, such as its fused form
    """
    folder = find_checkpoint(checkpoint)
    target = choose_device(device, "--device")
    model = from_pretrained(folder) if model is None else model
    labels = read_labels(folder)
    settings = data_settings_of(folder, labels, dataset=dataset, root=root, partition=partition, store=store)
    data = open_data_for(folder, labels, settings)
    trained = trained_store(folder, labels)
    batches: Iterable[tuple[Tensor, Tensor]] = EvalBatches(split_of(data, split), EVAL_BATCH, target)
    if shuffle:
        batches = shuffled_steps(batches)
    model = model.to(target)
    scores = evaluate_batches(model, batches, len(data.classes), CapturedShapes(model).run)
    if not math.isfinite(scores.loss):  # a clip without finite logits would count as its first class
        raise WeightsError.expected("logits", "finite numbers", "others", path=folder)
    selected_on_test = labels.protocol == "paper" and split == "test" and settings.dataset == labels.set
    return CheckpointEvaluation(
        str(checkpoint), model.config.form, settings.dataset, data.partition, data.store.key, trained, split, shuffle,
        selected_on_test, data.classes, scores, store_note(trained, data),
    )  # fmt: skip


def shuffled_steps(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same clips [B, T, 2, H, W], each with its own order of time steps; always the same orders."""
    generator = torch.Generator().manual_seed(0)
    for x, y in batches:
        order = torch.rand(x.shape[:2], generator=generator).argsort(1).to(x.device)
        yield x.gather(1, order[:, :, None, None, None].expand_as(x)), y
