"""`ripe fuse`: from the network that was trained to the one that is deployed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ripe_mambaspike.cli.output import console, print_json


@dataclass
class FuseCommand:
    """Fuse a trained network, verify that nothing changed, and save it: one kernel a convolution, no statistics."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """The folder of a run (its best network is taken), or of a saved network in its training form."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where to put it; fused/ in the run's folder, or beside the network's, when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.deploy.fuse.convert import fuse_with_report
        from ripe_mambaspike.models.labels import find_checkpoint
        from ripe_mambaspike.models.pretrained import from_pretrained

        folder = find_checkpoint(self.checkpoint)
        out = self.out or folder.parent / "fused"
        model = from_pretrained(folder)
        fused, agreement = fuse_with_report(model, quiet=True)
        fused.save_pretrained(out)
        before, after = model.parameter_count(), fused.parameter_count()
        if self.json:
            document = {
                "checkpoint": str(folder),
                "fused": str(out),
                "parameters": {"training": before, "deployed": after},
            }
            print_json({**document, "agreement": str(agreement)})
        else:
            console().print(f"{before:,} → [bold]{after:,}[/] parameters; verified: {agreement}\nfused network {out}")
        return 0
