"""`ripe export`: from a trained network to the files that another machine runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ripe_mambaspike.cli.data.recordings import print_warnings
from ripe_mambaspike.cli.export_tables import show
from ripe_mambaspike.cli.output import print_json, progress, progress_done

Files = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE …")]


@dataclass
class ExportCommand:
    """Fuse a trained network and write it for another runtime, with a model card; --check compares it with PyTorch.

    A folder is written: the clip graph (T bins in, logits of every step out), the step graph (one bin and all states
    in, features and the next states out) and the tail graph (the features of T steps in, logits out); for safetensors
    the network that from_pretrained loads; for NIR the spiking front-end.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """The folder of a run (its best network is taken), or of a saved network."""
    to: Literal["safetensors", "onnx", "torch-export", "aoti", "executorch", "nir"]
    """The format."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where to put it; export/FORMAT-WEIGHTS in the run's folder, or in NETWORK-export, when not given."""
    weights: Literal["fp32", "fp16", "int8"] = "fp32"
    """How weights are kept; int8 are calibrated on training recordings, one scale for each output channel."""
    graphs: tuple[Literal["clip", "step", "tail"], ...] = ()
    """Which graphs to write; all that the network has when not given."""
    static: bool = False
    """For one clip at a time of the trained size, where a format cannot leave batch and resolution open."""
    opset: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Of ONNX; a recent one when not given."""
    check: bool = False
    """Run what was written beside PyTorch: largest difference, labels, time to load and to answer. What does not agree
    is not left behind."""
    recordings: Files = ()
    """To check on; up to --clips test recordings of the set it was trained on when not given."""
    calibration: Files = ()
    """To calibrate int8 weights on; training recordings of the set it was trained on when not given."""
    clips: Annotated[int, tyro.conf.arg(metavar="N")] = 100
    """How many test recordings to check on."""
    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the set lies; as in the run's recipe when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.deploy.export.pipeline import export

        try:
            with print_warnings():
                result = export(
                    self.checkpoint,
                    self.out,
                    to=self.to,
                    weights=self.weights,
                    graphs=self.graphs,
                    static=self.static,
                    opset=self.opset,
                    check=self.check,
                    recordings=self.recordings,
                    calibration=self.calibration,
                    clips=self.clips,
                    root=self.root,
                    progress=lambda what: progress(f"{what} …"),
                )
        finally:
            progress_done()
        print_json(result.to_dict()) if self.json else show(result.to_dict())
        return 0
