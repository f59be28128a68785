"""Calibrate a saved network: a temperature for its probabilities, and a threshold below which it says "unknown".

The temperature is divided out of the last layer's weights, so that every export, stream and page uses it unchanged.
The clips are those that the network was selected on, never those that it is tested on.
"""

import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn

from ripe_mambaspike.data.clips import Clips, EvalBatches
from ripe_mambaspike.data.settings import DataSettings, root_of
from ripe_mambaspike.data.training_data import TrainingData
from ripe_mambaspike.errors import ConfigError, DataError, VerificationError
from ripe_mambaspike.inference.checkpoint_data import (
    data_settings_of,
    open_data_for,
    run_data_settings,
    store_note,
    trained_store,
)
from ripe_mambaspike.inference.recorded import record_logits
from ripe_mambaspike.inference.temperature import (
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
)
from ripe_mambaspike.inference.unknown import SCORES, score_of, threshold_for
from ripe_mambaspike.models.accuracy import EVAL_BATCH
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.labels import Calibration, Labels, UnknownRule, find_checkpoint, read_labels
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.nn.eval_mode import choose_device

LOGIT_TOLERANCE = 1e-4  # of the scaled logits, relative to the largest


@dataclass(frozen=True)
class ProbabilityQuality:
    """How well the probabilities of a network fit the clips."""

    nll: float
    ece: float


@dataclass(frozen=True)
class CalibratedNetwork:
    """A network that was calibrated and saved, and its probabilities before and after on the clips that were used."""

    checkpoint: Path
    out: Path
    form: str
    calibration: Calibration
    partition: str
    factor: float  # the temperature of this calibration; `calibration.temperature` includes those of earlier ones
    top1: float  # the same before and after
    before: ProbabilityQuality
    after: ProbabilityQuality
    kept: float | None  # the share of the clips that reach the threshold
    note: str | None  # where the clips are not, or not known to be, those that the network was selected on

    def to_dict(self) -> dict[str, Any]:
        """For a JSON document."""
        paths = {"checkpoint": str(self.checkpoint), "out": str(self.out)}
        return {**asdict(self), **paths, "calibration": msgspec.to_builtins(self.calibration)}


def calibrate(
    checkpoint: str | Path,
    out: str | Path,
    *,
    keep: float | None = None,
    score: Literal["probability", "energy"] | None = None,
    dataset: str | None = None,
    root: str | Path | None = None,
    split: Literal["train", "val", "test"] = "val",
    partition: str | None = None,
    store: str | None = None,
    device: str | None = "auto",
) -> CalibratedNetwork:
    """Choose a temperature on validation clips, and save the network with its last layer divided by it.

    The class of a recording does not change, which is verified.

    Args:
        checkpoint: the folder of a run or of a saved network in any form, or the name of a shipped network
        out: the folder to write
        keep: also choose a threshold that this share of the clips reaches; what scores below it is unknown
        score: "probability" (the default) of the most likely class, or "energy", the log of the sum of exp(logits)
        dataset: name of the dataset of the clips; by default that of training
        root: its folder; by default that of training
        split: "val", or "train" of a dataset that the network was not trained on; "test" is refused
        partition: how the dataset is split; by default as in training
        store: key of one of its preparations, or "current"; by default that of training
        device: "auto", "cpu" or "cuda"
    """
    folder, out = find_checkpoint(checkpoint), Path(out)
    _check_options(folder, out, keep, score)
    if split not in ("train", "val"):
        wanted = "val, or train of another dataset: what a network is tested on must not be chosen by"
        raise ConfigError.expected("split", wanted, repr(split))
    target = choose_device(device, "device")
    model, labels = from_pretrained(folder).to(target), read_labels(folder)
    settings = data_settings_of(folder, labels, dataset=dataset, root=root, partition=partition, store=store)
    settings = _with_validation_of(folder, settings, root)
    data = open_data_for(folder, labels, settings)
    clips = _clips_of(data, labels, split)
    before = _logits(model, clips, target)
    truth = torch.from_numpy(clips.labels)
    factor = fit_temperature(before, truth)
    scaled = scale_logits(model, 1 / factor)
    after = _logits(scaled, clips, target)
    _verify(before, after * factor)
    rule = None
    if keep is not None:
        name = score or "probability"
        rule = UnknownRule(score=name, threshold=threshold_for(score_of(name, after), keep), keep=keep)
    earlier = 1.0 if labels.calibration is None else labels.calibration.temperature
    calibration = Calibration(
        temperature=earlier * factor, set=settings.dataset, split=split, store=data.store.key, clips=len(clips),
        unknown=rule,
    )  # fmt: skip
    scaled.labels = replace(labels, calibration=calibration)
    scaled.save_pretrained(out)
    return CalibratedNetwork(
        checkpoint=folder,
        out=out,
        form=model.config.form,
        calibration=calibration,
        partition=data.partition,
        factor=factor,
        top1=float((before.argmax(-1) == truth).double().mean()),
        before=ProbabilityQuality(negative_log_likelihood(before, truth), expected_calibration_error(before, truth)),
        after=ProbabilityQuality(negative_log_likelihood(after, truth), expected_calibration_error(after, truth)),
        kept=None if rule is None else float((score_of(rule.score, after) >= rule.threshold).double().mean()),
        note=_note(folder, labels, data),
    )


def scale_logits(model: Model, factor: float) -> Model:
    """A copy of the network whose logits are multiplied by the factor, in the last layer's weight and bias."""
    scaled = copy.deepcopy(model)
    last = scaled.last_layer
    if not isinstance(last, nn.Linear):
        raise ConfigError.expected("head", "one that ends in a Linear", f"a {type(last).__name__}")
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.mul_(factor)
    return scaled.eval()


def _check_options(folder: Path, out: Path, keep: float | None, score: str | None) -> None:
    if out.resolve() == folder.resolve():
        raise ConfigError.expected("out", "another folder than the network's own", str(out))
    if keep is not None and not 0 < keep <= 1:
        raise ConfigError.expected("keep", "a share above 0 and at most 1", keep)
    if score is not None and score not in SCORES:
        raise ConfigError.expected("score", f"one of {', '.join(SCORES)}", repr(score))
    if score is not None and keep is None:
        raise ConfigError.expected("score", "none without keep", repr(score))


def _with_validation_of(folder: Path, settings: DataSettings, root: str | Path | None) -> DataSettings:
    """The settings, with validation clips where the dataset is in another folder than the run's."""
    recipe = run_data_settings(folder)
    if root is None or recipe is None or root_of(recipe).resolve() == Path(root).resolve():
        return settings
    return replace(settings, validation=True, folds=0, fold=0)


def _clips_of(data: TrainingData, labels: Labels, split: str) -> Clips:
    if split == "train":
        if data.settings.dataset == labels.set:
            raise DataError.expected("split", f"val of {labels.set}, which the network was trained on", "'train'")
        return data.train
    if data.val is None:
        hint = "give clips that the network was not trained on, by --dataset NAME --root DIR"
        raise DataError.expected("split", f"validation clips of {data.settings.dataset}", "none", hint=hint)
    return data.val


def _logits(model: Model, clips: Clips, device: torch.device) -> Tensor:
    """The logits of all clips [N, classes], as they are evaluated."""
    return record_logits(model, (x for x, _ in EvalBatches(clips, EVAL_BATCH, device)))


def _verify(before: Tensor, after: Tensor) -> None:
    """Raise unless the logits are the same but for rounding, and the labels are the same."""
    difference = float((before - after).abs().max() / before.abs().max().clamp_min(1e-30))
    if difference > LOGIT_TOLERANCE:
        got = f"a relative difference of {difference:.1e}"
        raise VerificationError.expected("logits", "those of before, divided by the temperature", got)
    changed = int((before.argmax(-1) != after.argmax(-1)).sum())
    if changed:
        raise VerificationError.expected("labels", "the same as before", f"{changed} of {len(before)} others")


def _note(folder: Path, labels: Labels, data: TrainingData) -> str | None:
    trained = trained_store(folder, labels)
    if note := store_note(trained, data):
        return note
    if run_data_settings(folder) is None:
        return "whether the network was selected on these clips is not known, since its run's recipe.yaml is not there"
    return None
