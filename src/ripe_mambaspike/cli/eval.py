"""`ripe eval`: the accuracy of a saved network on a split of a dataset."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.markup import escape

from ripe_mambaspike.cli.output import console, print_json, print_message, print_table
from ripe_mambaspike.command_options import Checkpoint, DeviceName, Flag, Folder, Json, Number, option

MOST_ANSWERS = 6  # classes that are listed


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
    unknown: Annotated[str | None, option("DIR|DATASET=ROOT")] = None
    """Recordings of classes that the network was not shown: how well a score tells them from the clips of the split
    (AUROC), and at the threshold of ripe calibrate how many of both are kept. Of a dataset it is the same split."""
    other_class: Annotated[str | None, option("CLASS")] = None
    """With --unknown: a class of the network that stands for everything else, such as other_gestures. What is given to
    it counts as unknown, and the other classes' clips alone as known."""
    windows: Annotated[list[float], option("MS")] = field(default_factory=list)
    """Also classify windows of these lengths, half a length apart, from each recording's first to its last event."""
    errors: Folder = None
    """Draw every recording that is classified wrongly, into a new or empty folder that is written whole or not at all:
    TRUE_as_PREDICTED_NAME.png."""
    max_errors: Number = 100
    """How many are drawn at most, of all classes by turns."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import evaluate

        found = evaluate(
            self.checkpoint, dataset=self.dataset, root=self.root, split=self.split, partition=self.partition,
            store=self.store, fused=self.fused, shuffle=self.shuffle, unknown=self.unknown,
            other_class=self.other_class, windows=self.windows, errors=self.errors, max_errors=self.max_errors,
            device=self.device,
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
    if windows := document.get("windows"):
        _show_windows(out, windows, document)
    if unknown := document.get("unknown"):
        _show_unknown(out, unknown)
    if errors := document.get("errors"):
        drawn = f"; {errors['drawn']} of them drawn in {errors['folder']}" if errors["drawn"] else ""
        out.print(escape(f"classified wrongly: {errors['wrong']}{drawn}"), soft_wrap=True)


def _show_windows(out: Console, windows: list[dict[str, Any]], document: dict[str, Any]) -> None:
    recordings = document["n"]
    rows = [("whole recordings", f"{recordings:,}", f"{100 * document['top1']:.2f} %")]
    rows += [
        (f"{one['window_ms']:g} ms", f"{one['n']:,}", "–" if one["top1"] is None else f"{100 * one['top1']:.2f} %")
        for one in windows
    ]
    print_table(out, "windows, half a length apart", ("window", "number", "right"), rows)
    for one in windows:
        left = [f"{one['too_short']} of {recordings} recordings are shorter"] if one["too_short"] else []
        left += [f"{one['silent']:,} windows have no event"] if one["silent"] else []
        if left:
            out.print(f"{one['window_ms']:g} ms: {', '.join(left)}", soft_wrap=True)


def _show_unknown(out: Console, found: dict[str, Any]) -> None:
    scores = ", ".join(f"{name} [bold]{value:.4f}[/]" for name, value in found["auroc"].items())
    source = escape(found["source"])
    out.print(f"AUROC of {found['known']} known clips and {found['n']} of {source}: {scores}", soft_wrap=True)
    if found["score"] is None:
        out.print("The network has no threshold: see ripe calibrate --keep.", soft_wrap=True)
    else:
        out.print(
            f"{found['score']} of at least {found['threshold']:.4g}: {100 * found['kept']:.2f} % of the known ones are "
            f"kept, {100 * found['rejected']:.2f} % of the others rejected",
            soft_wrap=True,
        )
    if named := found["named"]:
        out.print(
            f"AUROC of {named['known']} clips of classes but {escape(named['other_class'])}, by the best probability: "
            f"[bold]{named['auroc']:.4f}[/]; {100 * named['kept']:.2f} % of them and "
            f"{100 - 100 * named['rejected']:.2f} % of the others are given to such a class",
            soft_wrap=True,
        )
    given = ", ".join(f"{name} {count}" for name, count in list(found["answers"].items())[:MOST_ANSWERS])
    out.print(escape(f"without a threshold these would be {given}"), soft_wrap=True)


def _share(row: dict[str, Any]) -> str:
    return f"{100 * row['correct'] / row['n']:.1f} %" if row["n"] else "–"
