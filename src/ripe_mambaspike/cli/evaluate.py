"""`ripe eval`: the number of a saved network on a part of a set."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ripe_mambaspike.cli.output import console, print_json, print_table
from ripe_mambaspike.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


@dataclass
class EvalCommand:
    """Evaluate a saved network on a part of a set: top-1, top-5, every class, and how often neurons fire.

    Top-5 is left out where there are five classes or fewer: it is 100 % whatever the network says.

    On the part that a run reported, it gives the reported number again, for the training and for the fused form.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A run's folder, or one with config.json and model.safetensors."""
    dataset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """The set (see ripe data sets); the one it was trained on when not given."""
    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the set lies; as in the run's recipe, or data/NAME, when not given."""
    split: Literal["train", "val", "test"] = "test"
    """The part."""
    cut: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """How the set is split, where there are several ways."""
    store: Annotated[str | None, tyro.conf.arg(metavar="KEY|current")] = None
    """The preparation of the set (see ripe data list); the one it was trained on when not given."""
    fused: bool = False
    """Fuse the network first."""
    shuffle: bool = False
    """Put every clip's time bins into a random order: what the network loses is what it knew from time."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it is computed."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.data.clips import EvalBatches
        from ripe_mambaspike.deploy.fuse.convert import fuse
        from ripe_mambaspike.inference.checkpoint_data import (
            data_settings_of,
            open_data_for,
            split_of,
            store_note,
            trained_store,
        )
        from ripe_mambaspike.models.evaluate import BATCH, evaluate
        from ripe_mambaspike.models.labels import find_checkpoint, read_labels
        from ripe_mambaspike.models.pretrained import from_pretrained
        from ripe_mambaspike.models.ripe import RipeMambaSpike
        from ripe_mambaspike.nn.evaluation import choose_device

        folder = find_checkpoint(self.checkpoint)
        device = choose_device(self.device)
        model = from_pretrained(folder)
        labels = read_labels(folder)
        settings = data_settings_of(
            folder, labels, dataset=self.dataset, root=self.root, cut=self.cut, store=self.store
        )
        data = open_data_for(folder, labels, settings)
        if self.fused and isinstance(model, RipeMambaSpike) and model.config.form == "training":
            model = fuse(model, quiet=True)
        part = split_of(data, self.split)
        batches: Any = EvalBatches(part, BATCH, device)
        trained = trained_store(folder, labels)
        if note := store_note(trained, data):
            print(f"ripe: {'note' if trained else 'warning'}: {note}", file=sys.stderr)
        found = evaluate(model.to(device), shuffled(batches) if self.shuffle else batches, len(data.classes))
        if not math.isfinite(found.loss):  # a clip without finite logits would count as its first class
            raise WeightsError(f"{folder}: logits: expected finite numbers, got some that are not", field="logits")
        document = {
            "checkpoint": str(self.checkpoint), "form": model.config.form, "set": settings.dataset, "cut": data.cut,
            "store": data.store.key, "trained_on_store": trained,
            "split": self.split, "shuffled": self.shuffle, **found.to_dict(data.classes),
        }  # fmt: skip
        print_json(document) if self.json else show(document)
        return 0


def shuffled(batches: "Iterable[tuple[Tensor, Tensor]]") -> "Iterator[tuple[Tensor, Tensor]]":
    """The same clips [B, T, 2, H, W], each with its own order of steps; always the same orders."""
    import torch

    draws = torch.Generator().manual_seed(0)
    for x, y in batches:
        order = torch.rand(x.shape[:2], generator=draws).argsort(1).to(x.device)
        yield x.gather(1, order[:, :, None, None, None].expand_as(x)), y


def show(document: dict[str, Any]) -> None:
    out = console()
    top5 = "" if document["top5"] is None else f", top-5 {100 * document['top5']:.2f} %"  # always 100 for few classes
    out.print(
        f"[bold]top-1 {100 * document['top1']:.2f} %[/]{top5} of {document['n']} "
        f"{document['set']} ({document['cut']}) {document['split']} clips, {document['form']} form"
        + (", time bins shuffled" if document["shuffled"] else "")
    )
    out.print(f"store {document['store']}")
    rows = [(row["name"], str(row["n"]), str(row["correct"]), _share(row)) for row in document["per_class"]]
    print_table(out, "classes", ("class", "clips", "right", "share"), rows)
    if document["rates"]:
        out.print("firing rates " + "  ".join(f"{rate:.3f}" for rate in document["rates"]))


def _share(row: dict[str, Any]) -> str:
    return f"{100 * row['correct'] / row['n']:.1f} %" if row["n"] else "–"
