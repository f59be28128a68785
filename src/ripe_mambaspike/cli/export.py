"""`ripe export`: a trained network as files for another runtime."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ripe_mambaspike.cli.export_tables import show_export
from ripe_mambaspike.cli.output import print_json, print_warnings
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Checkpoint, Count, Flag, Folder, Json, Number, option

Files = Annotated[tuple[Path, ...], option("FILE …")]


@dataclass
class ExportCommand:
    """Fuse a trained network and write it for another runtime, with a model card. --check compares it with PyTorch.

    The output is a folder with the clip graph (T bins → logits of every step), the step graph (one bin and all states →
    features and the next states) and the tail graph (features of T steps → logits). For safetensors it holds the
    network that from_pretrained loads, for NIR the spiking front-end. A network other than RIPE-MambaSpike is written
    as it is, to safetensors, or to onnx as the clip graph alone.
    """

    checkpoint: Checkpoint
    """The folder of a run (its best network is taken), or of a saved network, or the name of a shipped one."""
    to: Annotated[str, option("FORMAT")]
    """safetensors, onnx, torch-export, aoti, executorch, nir, or a format of your own (CONTRIBUTING.md)."""
    out: Folder = None
    """The folder to write. Default: export/FORMAT-WEIGHTS in the run's folder, or in NETWORK-export."""
    weights: Literal["fp32", "fp16", "int8"] = "fp32"
    """Precision of the stored weights. int8 weights are calibrated on training recordings."""
    graphs: Annotated[tuple[Literal["clip", "step", "tail"], ...], option("{clip,step,tail} …")] = ()
    """Which graphs to write. Default: all that the network has."""
    static: Flag = False
    """Fix the batch size to 1 and the resolution to that of training. Some formats need it."""
    opset: Count = None
    """ONNX opset. Default: a recent one."""
    check: Flag = False
    """Run the export and PyTorch on recordings, and compare outputs, labels and time. An export that does not agree is
    not kept."""
    recordings: Files = ()
    """Recordings to check on. Default: up to --clips test recordings of the dataset it was trained on."""
    calibration: Files = ()
    """Recordings to calibrate int8 weights on. Default: training recordings of the dataset it was trained on."""
    clips: Number = 100
    """How many test recordings to check on."""
    root: Folder = None
    """Folder of the dataset. Default: as in the run's recipe."""
    json: Json = False

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
