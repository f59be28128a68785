"""`ripe export`: a trained network as files for another runtime."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ripe_mambaspike.cli.data.recordings import print_warnings
from ripe_mambaspike.cli.export_tables import show_export
from ripe_mambaspike.cli.output import print_json
from ripe_mambaspike.cli.progress import progress_bar

Files = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE …")]


@dataclass
class ExportCommand:
    """Fuse a trained network and write it for another runtime, with a model card. --check compares it with PyTorch.

    The output is a folder with the clip graph (T bins → logits of every step), the step graph (one bin and all states →
    features and the next states) and the tail graph (features of T steps → logits). For safetensors it holds the
    network that from_pretrained loads, for NIR the spiking front-end.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """The folder of a run (its best network is taken), or of a saved network."""
    to: Annotated[str, tyro.conf.arg(metavar="FORMAT")]
    """safetensors, onnx, torch-export, aoti, executorch, nir, or a format of your own (CONTRIBUTING.md)."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The folder to write. Default: export/FORMAT-WEIGHTS in the run's folder, or in NETWORK-export."""
    weights: Literal["fp32", "fp16", "int8"] = "fp32"
    """Precision of the stored weights. int8 weights are calibrated on training recordings."""
    graphs: tuple[Literal["clip", "step", "tail"], ...] = ()
    """Which graphs to write. Default: all that the network has."""
    static: bool = False
    """Fix the batch size to 1 and the resolution to that of training. Some formats need it."""
    opset: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """ONNX opset. Default: a recent one."""
    check: bool = False
    """Run the export and PyTorch on recordings, and compare outputs, labels and time. An export that does not agree is
    not kept."""
    recordings: Files = ()
    """Recordings to check on. Default: up to --clips test recordings of the dataset it was trained on."""
    calibration: Files = ()
    """Recordings to calibrate int8 weights on. Default: training recordings of the dataset it was trained on."""
    clips: Annotated[int, tyro.conf.arg(metavar="N")] = 100
    """How many test recordings to check on."""
    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the dataset. Default: as in the run's recipe."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike import export

        with progress_bar() as update, print_warnings():
            result = export(
                self.checkpoint, self.out, to=self.to, weights=self.weights, graphs=self.graphs, static=self.static,
                opset=self.opset, check=self.check, recordings=self.recordings, calibration=self.calibration,
                clips=self.clips, root=self.root, progress=lambda what: update(f"{what} …"),
            )  # fmt: skip
        print_json(result.to_dict()) if self.json else show_export(result.to_dict())
        return 0
