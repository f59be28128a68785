"""`ripe fuse`: the deployed form of a trained network."""

from dataclasses import dataclass

from ripe_mambaspike.cli.output import console, print_json
from ripe_mambaspike.command_options import Checkpoint, Folder, Json


@dataclass
class FuseCommand:
    """Fuse a trained network into one kernel for each convolution, verify the result, and save it."""

    checkpoint: Checkpoint
    """The folder of a run (its best network is taken), or of a saved network in its training form."""
    out: Folder = None
    """The folder to write. Default: fused/ in the run's folder, or beside the network's."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import fuse_checkpoint

        done = fuse_checkpoint(self.checkpoint, self.out)
        if self.json:
            print_json(done.to_dict())
        else:
            counts = f"{done.parameters_before:,} → [bold]{done.parameters:,}[/] parameters"
            console().print(f"{counts}; verified: {done.agreement}\nfused network {done.out}")
        return 0
