"""`ripe eval`: the accuracy of a saved network on a split of a dataset."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ripe_mambaspike.cli.output import console, print_json, print_table


@dataclass
class EvalCommand:
    """Evaluate a saved network on a split of a dataset: top-1, top-5, every class, and firing rates.

    Top-5 is left out where there are five classes or fewer: it would always be 100 %.

    On the split that a run reported, it gives the reported number again, for the training and for the fused form.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """The folder of a run, or of a saved network."""
    dataset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """The dataset (see ripe data sets); by default the one it was trained on."""
    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the dataset; by default as in the run's recipe, or data/NAME."""
    split: Literal["train", "val", "test"] = "test"
    """Which clips."""
    partition: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """How the dataset is split, where there are several ways."""
    store: Annotated[str | None, tyro.conf.arg(metavar="KEY|current")] = None
    """The preparation of the dataset (see ripe data list); by default the one it was trained on."""
    fused: bool = False
    """Fuse the network first."""
    shuffle: bool = False
    """Put every clip's time steps into a random order: what the network loses is what it knew from time."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike import evaluate

        found = evaluate(
            self.checkpoint,
            dataset=self.dataset,
            root=self.root,
            split=self.split,
            partition=self.partition,
            store=self.store,
            shuffle=self.shuffle,
            device=self.device,
            model=_fused(self.checkpoint) if self.fused else None,
        )
        if found.note:
            print(f"ripe: {'note' if found.trained_on_store else 'warning'}: {found.note}", file=sys.stderr)
        print_json(found.to_dict()) if self.json else show_evaluation(found.to_dict())
        return 0


def _fused(checkpoint: Path) -> Any:
    from ripe_mambaspike.deploy.fuse.convert import fuse
    from ripe_mambaspike.models.labels import find_checkpoint
    from ripe_mambaspike.models.pretrained import from_pretrained
    from ripe_mambaspike.models.ripe import RipeMambaSpike

    model = from_pretrained(find_checkpoint(checkpoint))
    trained = isinstance(model, RipeMambaSpike) and model.config.form == "training"
    return fuse(model, quiet=True) if trained else model


def show_evaluation(document: dict[str, Any]) -> None:
    out = console()
    top5 = "" if document["top5"] is None else f", top-5 {100 * document['top5']:.2f} %"
    out.print(
        f"[bold]top-1 {100 * document['top1']:.2f} %[/]{top5} of {document['n']} "
        f"{document['set']} ({document['partition']}) {document['split']} clips, {document['form']} form"
        + (", time steps shuffled" if document["shuffled"] else "")
    )
    out.print(f"store {document['store']}")
    rows = [(row["name"], str(row["n"]), str(row["correct"]), _share(row)) for row in document["per_class"]]
    print_table(out, "classes", ("class", "clips", "right", "share"), rows)
    if document["rates"]:
        out.print("firing rates " + "  ".join(f"{rate:.3f}" for rate in document["rates"]))


def _share(row: dict[str, Any]) -> str:
    return f"{100 * row['correct'] / row['n']:.1f} %" if row["n"] else "–"
