"""`ripe eval`: the accuracy of a saved network on a split of a dataset."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ripe_mambaspike.cli.output import console, print_json, print_message, print_table
from ripe_mambaspike.command_options import Checkpoint, DeviceName, Flag, Folder, Json, option


@dataclass
class EvalCommand:
    """Evaluate a saved network on a split of a dataset: top-1, top-5, every class, and firing rates.

    Top-5 is left out where there are five classes or fewer: it would always be 100 %.

    On the split that a run reported, the result is the reported one, for the training and for the fused form.
    """

    checkpoint: Checkpoint
    """The folder of a run, or of a saved network, or the name of a shipped one."""
    dataset: Annotated[str | None, option("NAME")] = None
    """The dataset (see ripe data sets). Default: the one it was trained on."""
    root: Folder = None
    """Folder of the dataset. Default: as in the run's recipe, or data/NAME."""
    split: Literal["train", "val", "test"] = "test"
    """Which clips."""
    partition: Annotated[str | None, option("NAME")] = None
    """How the dataset is split, where there are several ways."""
    store: Annotated[str | None, option("KEY|current")] = None
    """The preparation of the dataset (see ripe data list). Default: the one it was trained on."""
    fused: Flag = False
    """Fuse the network first; refused for a network that has nothing to fuse."""
    shuffle: Flag = False
    """Put every clip's time steps into a random order, to see how much of the accuracy depends on their order."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import evaluate

        found = evaluate(
            self.checkpoint, dataset=self.dataset, root=self.root, split=self.split, partition=self.partition,
            store=self.store, fused=self.fused, shuffle=self.shuffle, device=self.device,
        )  # fmt: skip
        if found.note:
            print_message(f"{'note' if found.trained_on_store else 'warning'}: {found.note}")
        print_json(found.to_dict()) if self.json else show_evaluation(found.to_dict())
        return 0


def show_evaluation(document: dict[str, Any]) -> None:
    from ripe_mambaspike.models.accuracy import BEST_TEST_EPOCH

    out = console()
    top5 = "" if document["top5"] is None else f", top-5 {100 * document['top5']:.2f} %"
    out.print(
        f"[bold]top-1 {100 * document['top1']:.2f} %[/]{top5} of {document['n']} "
        f"{document['set']} ({document['partition']}) {document['split']} clips, {document['form']} form"
        + (", time steps shuffled" if document["shuffled"] else "")
    )
    if document["selected_on_test"]:
        out.print(BEST_TEST_EPOCH, soft_wrap=True)
    out.print(f"store {document['store']}")
    rows = [(row["name"], str(row["n"]), str(row["correct"]), _share(row)) for row in document["per_class"]]
    print_table(out, "classes", ("class", "clips", "right", "share"), rows)
    if document["rates"]:
        out.print("firing rates " + "  ".join(f"{rate:.3f}" for rate in document["rates"]))


def _share(row: dict[str, Any]) -> str:
    return f"{100 * row['correct'] / row['n']:.1f} %" if row["n"] else "–"
