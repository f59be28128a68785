"""`export`: from a trained network to a folder for another runtime: fuse, quantize, write, check."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ripe_mambaspike.data.clips import EvalBatches
from ripe_mambaspike.deploy.export.card import NETWORK_FOLDERS, CardFacts, result_of_network, write_card
from ripe_mambaspike.deploy.export.manifest import read_manifest
from ripe_mambaspike.deploy.export.parity import ParityResult
from ripe_mambaspike.deploy.export.registry import ExportOptions, WeightFormat, export_format
from ripe_mambaspike.deploy.export.sample_clips import SampleClips, from_files, from_set, open_split
from ripe_mambaspike.deploy.export.write import check_output_folder, to_deployed, write_export
from ripe_mambaspike.deploy.quantize.convert import AccuracyChange, apply_stored, compare_accuracy, to_float16, to_int8
from ripe_mambaspike.errors import DataError, InputError, WeightsError
from ripe_mambaspike.inference.checkpoint_data import EXPORTS_FOLDER
from ripe_mambaspike.inference.classifier import Classifier, load_network, make_classifier
from ripe_mambaspike.models.accuracy import EVAL_BATCH
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.labels import Labels, find_checkpoint
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.shipped import weights_folder
from ripe_mambaspike.models.stored import Stored

CALIBRATION_CLIPS = 64


@dataclass(frozen=True)
class ExportResult:
    """The files that were written and the measurements."""

    folder: Path
    to: str
    weights: str
    checkpoint: Path | None
    files: dict[str, int]  # bytes
    calibration: dict[str, Any] | None = None
    accuracy: dict[str, Any] | None = None  # of smaller weights, on the test part
    accuracy_unknown: str | None = None  # why it was not measured
    check: dict[str, Any] | None = None
    not_expressed: tuple[str, ...] | None = None  # of the network, by a NIR file

    def to_dict(self) -> dict[str, Any]:
        """As a JSON document, without fields that were not requested."""
        values = {**vars(self), "folder": str(self.folder), "checkpoint": self.checkpoint and str(self.checkpoint)}
        return {name: value for name, value in values.items() if value is not None}


def export(
    source: Model | str | Path,
    out: str | Path | None = None,
    *,
    to: str,
    weights: WeightFormat = "fp32",
    graphs: Sequence[str] = (),
    static: bool = False,
    opset: int | None = None,
    check: bool = False,
    recordings: Sequence[Path] = (),
    calibration: Sequence[Path] = (),
    clips: int = 100,
    root: Path | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> ExportResult:
    """Export a network, or the network of a run or folder, to another runtime, with a model card.

    A RIPE-MambaSpike is fused first; any other network is exported as it is, to safetensors or onnx.

    Args:
        source: a network, the folder of a run or of a saved network, or the name of a shipped network
        to: safetensors, onnx, torch-export, aoti, executorch, nir, or a format of your own (`register_export`)
        out: folder to write; `export/TO-WEIGHTS` in the run's folder, or in NETWORK-export, when not given
        weights: fp32, fp16 or int8; int8 is calibrated on training recordings
        graphs: clip, step and tail; all that the network has when not given
        check: compare what was written with PyTorch on `recordings`, or on `clips` test ones; raises where they differ
        static: fix the batch size and the number of steps in the graphs
        opset: version of the ONNX operators; that of the exporter when not given
        recordings: the recordings to compare on
        calibration: the recordings to calibrate on; training clips of the network's dataset when not given
        clips: how many test clips to compare on
        root: folder of the dataset; as in the run's recipe when not given
        progress: is called with one line for each thing that is done
    """
    options = ExportOptions(to, weights, tuple(graphs), static, opset)
    _check_together(options, check, recordings, calibration, clips)
    folder = None
    if isinstance(source, Model):
        labels = source.labels
        time_steps, grid = (
            (labels.time_steps, labels.grid) if labels else (source.config.time_steps, source.config.in_size)
        )
        classifier = make_classifier(source, labels, time_steps, grid)
        if out is None:
            raise InputError.expected("out", "a folder for a network in memory", None)
    else:
        folder = find_checkpoint(source)
        classifier = load_network(folder)
        labels = classifier.model.labels
        if folder.name in NETWORK_FOLDERS:
            home = folder.parent / EXPORTS_FOLDER
        elif folder.parent == weights_folder():  # never into the installed package
            home = Path(f"{folder.name}-export")
        else:
            home = folder.with_name(f"{folder.name}-export")
        out = home / f"{to}-{weights}" if out is None else out
    out = Path(out)
    check_output_folder(out)
    export_format(to).check_network(classifier.model, options)
    if check and not getattr(classifier.model.config, "causal", False) and ("step" in graphs) != ("tail" in graphs):
        raise InputError.expected("graphs", "step and tail together with --check", " ".join(graphs))
    job = _Job(options, folder, classifier, labels, root, progress)
    if check:
        job.checked_on = job.sample("test", recordings, clips, "recordings")
    if weights == "int8":
        job.calibrated_on = job.sample("train", calibration, CALIBRATION_CLIPS, "calibration")
    if isinstance(classifier.model, RipeMambaSpike):
        progress("fusing")
    job.model = to_deployed(classifier.model)
    job.shrink_weights()
    write_export(job.model, options, out, labels, job.stored, job.finish, progress)
    return ExportResult(out, to, weights, folder, **job.found)


def _check_together(
    options: ExportOptions, check: bool, recordings: Sequence[Path], calibration: Sequence[Path], clips: int
) -> None:
    """Raise for options that would be ignored."""
    if clips < 1:
        raise InputError.expected("clips", "an int of at least 1", clips)
    if recordings and not check:
        raise InputError.expected("recordings", "--check with them", "no --check")
    if calibration and options.weights != "int8":
        raise InputError.expected("calibration", "--weights int8 with it", options.weights)


@dataclass
class _Job:
    """One export in progress, and its results."""

    options: ExportOptions
    folder: Path | None  # of the checkpoint
    classifier: Classifier
    labels: Labels | None
    root: Path | None
    progress: Callable[[str], None]
    model: Model = field(init=False)  # deployed if it can be, float32
    stored: dict[str, Stored] | None = None
    checked_on: SampleClips | None = None
    calibrated_on: SampleClips | None = None
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        run = result_of_network(self.folder) if self.folder else ()
        options = self.options
        self.facts = CardFacts(options.to, options.weights, options.graphs, options.static, self.labels, *run)

    def sample(self, part: str, files: Sequence[Path], count: int, option: str) -> SampleClips:
        if files:
            return from_files(self.classifier, files)
        if self.labels is None or self.folder is None:
            expected = "recordings, because the network does not name the set it was trained on"
            raise InputError.expected(option, expected, "none")
        return from_set(self.folder, self.labels, part, count, self.root)

    def shrink_weights(self) -> None:
        """Quantize the weights if requested, and measure the effect."""
        if self.options.weights == "fp16":
            self.stored = to_float16(self.model)
        elif self.calibrated_on is not None:
            self.progress("calibrating")
            self.stored, report = to_int8(self.model, self.calibrated_on.clips)
            self.found["calibration"] = {
                "on": self.calibrated_on.what,
                "clips": report.clips,
                "worst_layer": report.worst.name,
                "worst_error": report.worst.error,
            }
            self.facts.calibration = report
        if self.stored is None:
            return
        try:
            change = self._measure_accuracy(self.stored)
        except (DataError, WeightsError) as error:
            if self.root is not None:
                raise
            self.found["accuracy_unknown"] = str(error)  # the dataset is not on this machine
        else:
            self.found["accuracy"] = {
                "n": change.clips,
                "fp32_top1": change.top1,
                "top1": change.top1_stored,
                "points": change.points,
                "agreeing": change.agreeing,
            }
            self.facts.accuracy = change

    def finish(self, made: Path) -> None:
        """Check what was written if requested, and write the model card."""
        target = export_format(self.options.to)
        self.found["files"] = {path.name: path.stat().st_size for path in sorted(made.iterdir())}
        if target.has_manifest and not target.has_graphs:
            self.found["not_expressed"] = self.facts.limits = read_manifest(made).not_expressed
        if self.checked_on is not None:
            self.progress("checking")
            network = apply_stored(self.model, self.stored) if self.stored else self.model
            ways = target.check(made, network, self.checked_on.clips)
            self.facts.parity = {
                f"{self.options.to}, {how}": one for how, one in ways.items() if isinstance(one, ParityResult)
            }
            self.found["check"] = {
                "on": self.checked_on.what,
                "ways": {how: one.to_dict() for how, one in ways.items()},
            }
        config = self.model.config.replace(time_steps=self.classifier.time_steps, in_size=self.classifier.grid)
        operations = f"{count_flops(config).total / 1e9:.3f} GFLOP, a multiply-add being two"
        self.facts.cost = {"operations of one clip": operations}
        write_card(made, self.model, self.facts)

    def _measure_accuracy(self, stored: dict[str, Stored]) -> AccuracyChange:
        """The accuracy change of the quantized weights on the test split."""
        if self.labels is None or self.folder is None:
            raise WeightsError.expected("set", "the name of the set it was trained on", "none", path=self.folder)
        part, _ = open_split(self.folder, self.labels, "test", self.root)
        self.progress("comparing the accuracy")
        return compare_accuracy(self.model, stored, EvalBatches(part, EVAL_BATCH, torch.device("cpu")))
