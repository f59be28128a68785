"""`ripe calibrate`: probabilities that say how often a network is right, and when it says "unknown"."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ripe_mambaspike.cli.output import console, print_json, print_message, print_table
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Checkpoint, DeviceName, Float, Folder, Json, option

if TYPE_CHECKING:
    from ripe_mambaspike.inference.calibrate import CalibratedNetwork


@dataclass
class CalibrateCommand:
    """Choose a temperature for a network's probabilities on validation clips, and with --keep a threshold below which a
    recording is unknown; save the network with both.

    No class changes: the last layer's weights are divided by the temperature.
    """

    checkpoint: Checkpoint
    """The folder of a run or of a saved network, or the name of a shipped one."""
    out: Annotated[Path, option("DIR")]
    """The folder to write."""
    keep: Float = None
    """Also choose a threshold that this share of the clips reaches, such as 0.95. ripe predict, stream and serve then
    say unknown for what scores below it."""
    score: Literal["probability", "energy"] | None = None
    """What is compared with the threshold: the probability of the best class (the default), or the energy, the log of
    the sum of exp(logits). ripe eval --unknown compares the two."""
    dataset: Annotated[str | None, option("NAME")] = None
    """The dataset (see ripe data sets). Default: the one it was trained on."""
    root: Folder = None
    """Folder of the dataset. Default: as in the run's recipe, or data/NAME."""
    split: Literal["train", "val", "test"] = "val"
    """Which clips: val, or train of a dataset that the network was not trained on; test is refused."""
    partition: Annotated[str | None, option("NAME")] = None
    """How the dataset is split, where there are several ways."""
    store: Annotated[str | None, option("KEY|current")] = None
    """The preparation of the dataset (see ripe data list). Default: the one it was trained on."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import calibrate

        with progress_bar("calibrating …"):
            done = calibrate(
                self.checkpoint, self.out, keep=self.keep, score=self.score, dataset=self.dataset, root=self.root,
                split=self.split, partition=self.partition, store=self.store, device=self.device,
            )  # fmt: skip
        if done.note:
            print_message(f"note: {done.note}")
        print_json(done.to_dict()) if self.json else _show(done)
        return 0


def _show(done: "CalibratedNetwork") -> None:
    out, found = console(), done.calibration
    title = f"{found.clips} {found.set} ({done.partition}) {found.split} clips, {done.form} form"
    rows = [
        ("temperature", "1", f"{done.factor:.4g}"),
        ("NLL", f"{done.before.nll:.4f}", f"{done.after.nll:.4f}"),
        ("ECE", f"{100 * done.before.ece:.2f} %", f"{100 * done.after.ece:.2f} %"),
        ("top-1", f"{100 * done.top1:.2f} %", f"{100 * done.top1:.2f} %"),
    ]
    print_table(out, title, ("", "before", "after"), rows)
    if done.top1 == 1:
        out.print("The temperature stays 1: every clip is right, which says nothing about it.", soft_wrap=True)
    out.print(f"Verified: the class of none of the {found.clips} clips changed.", soft_wrap=True)
    if found.unknown is not None and done.kept is not None:
        out.print(
            f"unknown: {found.unknown.score} below {found.unknown.threshold:.4g}, which "
            f"{100 * done.kept:.2f} % of the clips reach",
            soft_wrap=True,
        )
    out.print(f"network {done.out}", soft_wrap=True)
