"""`ripe adapt`: fit a network to a user's camera, without labels."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ripe_mambaspike.cli.output import console, print_json
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Checkpoint, Json, option

if TYPE_CHECKING:
    from ripe_mambaspike.deploy.adapt import Adaptation


@dataclass
class AdaptCommand:
    """Re-estimate the statistics of a network's norms from your recordings, without labels, and save the network.

    Nothing is trained. The recordings should show all classes in about equal numbers. Where they are in folders with
    the names of classes, the accuracy before and after is printed, too: look at it before you use the result.
    """

    checkpoint: Checkpoint
    """The folder of a run or of a saved network, or the name of a shipped network."""
    recordings: Annotated[tuple[Path, ...], tyro.conf.Positional, option("RECORDING …")]
    """Recordings of any format, or folders of them."""
    out: Annotated[Path, option("DIR")]
    """The folder to write."""
    reference: Annotated[list[Path], option("PATH")] = field(default_factory=list)
    """Recordings like those that a deployed network was trained on, or folders of them. A deployed network needs them,
    since it no longer has the statistics of its norms."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import adapt

        with progress_bar("adapting …"):
            done = adapt(self.checkpoint, self.recordings, self.out, reference=self.reference)
        if self.json:
            print_json(done.to_dict())
        else:
            _show(done)
        return 0


def _show(done: "Adaptation") -> None:
    before, after = done.before, done.after
    out = console()
    out.print(f"{done.recordings} recordings: [bold]{100 * done.changed:.1f} %[/] of the answers changed")
    out.print(f"mean confidence {100 * before.confidence:.1f} % → {100 * after.confidence:.1f} %")
    if before.accuracy is not None and after.accuracy is not None:
        shares = f"{100 * before.accuracy:.2f} % → [bold]{100 * after.accuracy:.2f} %[/]"
        out.print(f"top-1 {shares} of the {done.labeled} recordings whose folder is named like a class")
    out.print(f"network {done.out}")
