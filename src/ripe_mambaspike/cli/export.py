"""`ripe export`: from a trained network to the files that another machine runs."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ripe_mambaspike.cli.data.recordings import print_warnings
from ripe_mambaspike.cli.export_tables import show
from ripe_mambaspike.cli.output import print_json, progress, progress_done
from ripe_mambaspike.errors import DataError, InputError, WeightsError

if TYPE_CHECKING:
    from ripe_mambaspike.deploy.export.sample_clips import SampleClips
    from ripe_mambaspike.deploy.quantize.convert import AccuracyChange
    from ripe_mambaspike.inference.classifier import Classifier
    from ripe_mambaspike.models.labels import Labels
    from ripe_mambaspike.models.ripe import RipeMambaSpike
    from ripe_mambaspike.models.stored import Stored

CALIBRATION_CLIPS = 64
NETWORK_FOLDERS = ("best", "fused")  # a run's folders with a network
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
    graphs: tuple[Literal["clip", "step", "tail"], ...] = ("clip", "step", "tail")
    """Which graphs to write."""
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
        from ripe_mambaspike.deploy.export.write import ExportOptions, check_output_folder, export, to_deployed
        from ripe_mambaspike.inference.classifier import load_network
        from ripe_mambaspike.models.labels import LABELS_FILE, find_checkpoint, read_labels

        self._check_words()
        wish = ExportOptions(self.to, self.weights, self.graphs, self.static, self.opset)
        folder = find_checkpoint(self.checkpoint)
        home = folder.parent / "export" if folder.name in NETWORK_FOLDERS else folder.with_name(f"{folder.name}-export")
        out = self.out or home / f"{self.to}-{self.weights}"
        check_output_folder(out)
        classifier = load_network(folder)
        labels = read_labels(folder) if (folder / LABELS_FILE).exists() else None
        job = _Job(self, folder, classifier, labels)
        try:
            job.look()
            progress("fusing …")
            job.model = to_deployed(classifier.model)
            job.make_small()
            export(job.model, wish, out, labels, job.stored, job.finish, lambda what: progress(f"{what} …"))
        finally:
            progress_done()
        document = {
            "checkpoint": str(folder), "folder": str(out), "to": self.to, "weights": self.weights, **job.document,
        }  # fmt: skip
        print_json(document) if self.json else show(document)
        return 0

    def _check_words(self) -> None:
        """Refuse what would be ignored, or checked in part alone."""
        if self.clips < 1:
            raise InputError(f"--clips is {self.clips}; a whole number of at least 1 is wanted")
        if self.recordings and not self.check:
            raise InputError("--recordings was given without --check; both are wanted, or none")
        if self.calibration and self.weights != "int8":
            raise InputError(f"--calibration was given with --weights {self.weights}; --weights int8 is wanted with it")
        if self.check and ("step" in self.graphs) != ("tail" in self.graphs):
            raise InputError(
                f"--graphs is {' '.join(self.graphs)} with --check, which runs step and tail together; both are wanted"
            )


@dataclass
class _Job:
    """One export under way, and what it will say."""

    asked: ExportCommand
    folder: Path
    classifier: "Classifier"
    labels: "Labels | None"
    model: "RipeMambaSpike" = field(init=False)  # deployed, float32
    stored: "dict[str, Stored] | None" = None
    seen: "SampleClips | None" = None  # what the export is checked on
    learned: "SampleClips | None" = None  # what int8 weights are calibrated on
    document: dict[str, Any] = field(default_factory=dict)

    def look(self) -> None:
        """Read the recordings that are needed: what is wrong with them is said before anything is computed."""
        from ripe_mambaspike.deploy.export.card import CardFacts
        from ripe_mambaspike.deploy.export.card_result import read_card_result

        asked = self.asked
        self.facts: CardFacts = CardFacts(asked.to, asked.weights, self.labels, read_card_result(self.folder))
        if asked.check:
            self.seen = self._clips("test", asked.recordings, asked.clips, "recordings", "to check on")
        if asked.weights == "int8":
            few = CALIBRATION_CLIPS
            self.learned = self._clips("train", asked.calibration, few, "calibration", "to calibrate on")

    def make_small(self) -> None:
        """The weights as they are to be kept, and what that changes."""
        from ripe_mambaspike.deploy.quantize.convert import to_float16, to_int8

        if self.asked.weights == "fp16":
            self.stored = to_float16(self.model)
        elif self.learned is not None:
            progress("calibrating …")
            self.stored, calibration = to_int8(self.model, self.learned.clips)
            worst = calibration.worst
            self.document["calibration"] = {
                "on": self.learned.what, "clips": calibration.clips, "worst_layer": worst.name,
                "worst_error": worst.error,
            }  # fmt: skip
            self.facts = replace(self.facts, calibration=calibration)
        if self.stored is None:
            return
        try:
            change = self._accuracy()
        except (DataError, WeightsError) as error:
            if self.asked.root is not None:
                raise
            self.document["accuracy_unknown"] = str(error)  # the set is elsewhere
        else:
            self.document["accuracy"] = {
                "n": change.clips, "fp32_top1": change.top1, "top1": change.top1_stored, "points": change.points,
                "agreeing": change.agreeing,
            }  # fmt: skip
            self.facts = replace(self.facts, accuracy=change)

    def finish(self, made: Path) -> None:
        """Look at what was written, check it where that was asked for, and write its card."""
        from ripe_mambaspike.account.flops import count_flops
        from ripe_mambaspike.deploy.export.card import write_card

        self.document["files"] = {path.name: path.stat().st_size for path in sorted(made.iterdir())}
        if self.asked.to == "nir":
            from ripe_mambaspike.deploy.export.manifest import read_manifest

            missing = read_manifest(made).not_expressed
            self.document["not_expressed"] = list(missing)
            self.facts = replace(self.facts, limits=missing)
        if self.seen is not None:
            progress("checking …")
            self.document["check"] = {"on": self.seen.what, "ways": self._check(made, self.seen)}
        config = self.model.config
        at = config.replace(time_steps=self.classifier.time_steps, in_size=self.classifier.grid)
        cost = (("operations of one clip", f"{count_flops(at).total / 1e9:.3f} GFLOP, a multiply-add being two"),)
        write_card(made, self.model, replace(self.facts, cost=cost))

    def _clips(self, part: str, files: tuple[Path, ...], count: int, option: str, why: str) -> "SampleClips":
        from ripe_mambaspike.deploy.export.sample_clips import from_files, from_set

        if files:
            with print_warnings():
                return from_files(self.classifier, files)
        if self.labels is None:
            raise InputError(
                f"{self.folder} does not say what it was trained on, so there is nothing {why}; --{option} is wanted"
            )
        return from_set(self.folder, self.labels, part, count, self.asked.root)

    def _accuracy(self) -> "AccuracyChange":
        """What the smaller weights change on the test part."""
        import torch

        from ripe_mambaspike.data.clips import EvalBatches
        from ripe_mambaspike.deploy.export.sample_clips import whole_part
        from ripe_mambaspike.deploy.quantize.convert import compare_accuracy
        from ripe_mambaspike.models.evaluate import EVAL_BATCH

        if self.labels is None:
            raise WeightsError(f"{self.folder} does not say what it was trained on")
        part = whole_part(self.folder, self.labels, "test", self.asked.root)
        assert self.stored is not None
        progress("comparing the accuracy …")
        return compare_accuracy(self.model, self.stored, EvalBatches(part, EVAL_BATCH, torch.device("cpu")))

    def _check(self, made: Path, seen: "SampleClips") -> dict[str, Any]:
        from ripe_mambaspike.deploy.export.card import ParityResult
        from ripe_mambaspike.deploy.export.check import check_export, check_front
        from ripe_mambaspike.deploy.quantize.convert import apply_stored

        to = self.asked.to
        if to == "nir":
            front = check_front(next(made.glob("*.nir")), self.model, seen.clips)
            return {"front-end": front.to_dict()}
        network = apply_stored(self.model, self.stored) if self.stored else self.model
        found = check_export(made, to, network, seen.clips)
        said = [ParityResult(f"{to}, {how}", one.difference, one.labels, one.clips) for how, one in found.items()]
        self.facts = replace(self.facts, parity=tuple(said))
        return {how: one.to_dict() for how, one in found.items()}
