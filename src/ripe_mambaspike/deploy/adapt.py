"""Adapt a network to a user's camera without labels: re-estimate the statistics of its norms from their recordings.

No weight is trained. A network in its training form has the statistics of what it was trained on; they are replaced by
those of the recordings (AdaBN). A deployed network has folded them into its kernels, and they cannot be read from
there: it is first expanded with the statistics of reference recordings, which are like those that it was trained on,
and fused again at the end.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.data.sets.folder import find_recordings
from ripe_mambaspike.deploy.fuse.convert import fuse
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.inference.classifier import Classifier, load_network, make_clip, read_recording
from ripe_mambaspike.models.base import Model, clip_logits
from ripe_mambaspike.models.expand import expand
from ripe_mambaspike.models.labels import find_checkpoint
from ripe_mambaspike.nn.calibrate import has_running_statistics, recalibrate
from ripe_mambaspike.nn.eval_mode import eval_mode

BATCH = 16
MIN_RECORDINGS = 2


@dataclass(frozen=True)
class AnswerSummary:
    """The answers of a network to the recordings."""

    confidence: float  # the mean probability of the answers
    accuracy: float | None  # of the recordings whose folder is named like a class; None if there are none


@dataclass(frozen=True)
class Adaptation:
    """What adapting a network changed."""

    checkpoint: Path
    out: Path
    recordings: int
    labeled: int  # recordings whose folder is named like a class
    changed: float  # the share of recordings with another answer
    before: AnswerSummary
    after: AnswerSummary

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "checkpoint": str(self.checkpoint), "out": str(self.out)}


def adapt(
    checkpoint: str | Path,
    recordings: Iterable[str | Path],
    out: str | Path,
    *,
    reference: Iterable[str | Path] = (),
) -> Adaptation:
    """Re-estimate the statistics of a network's norms from unlabeled recordings, and save the network in `out`.

    recordings: files and folders of them; of all classes in about equal numbers, since their mean becomes the norms'.
        Those in a folder with the name of a class are also used to compute the accuracy before and after.
    reference: recordings like those that the network was trained on; needed for a deployed network alone
    """
    folder, out = find_checkpoint(checkpoint), Path(out)
    if out.resolve() == folder.resolve():
        raise ConfigError.expected("out", "another folder than the network's own", str(out))
    classifier = load_network(folder)
    model = _with_statistics(classifier, _all_files(reference))
    files = _all_files(recordings)
    if len(files) < MIN_RECORDINGS:
        raise InputError.expected("recordings", f"at least {MIN_RECORDINGS}", len(files))
    batches = _batches(classifier, files)
    first = _answers(classifier.model, batches)
    recalibrate(model, batches, max_batches=None)
    adapted = fuse(model, quiet=True) if classifier.model.config.form == "deployed" else model.eval()
    second = _answers(adapted, batches)
    labels = classifier.model.labels
    adapted.labels = None if labels is None else replace(labels, calibration=None)  # which was of other statistics
    adapted.save_pretrained(out)
    given = _labels(classifier.class_names, files)
    return Adaptation(
        checkpoint=folder,
        out=out,
        recordings=len(files),
        labeled=sum(label is not None for label in given),
        changed=float((first.argmax(-1) != second.argmax(-1)).double().mean()),
        before=_summary(first, given),
        after=_summary(second, given),
    )


def _with_statistics(classifier: Classifier, reference: Sequence[Path]) -> Model:
    """The network in a form whose norms have the statistics of what it was trained on."""
    model: Model = classifier.model
    if model.config.form == "dual-kernel":
        raise ConfigError.expected("form", "a network in its training or deployed form", "dual-kernel")
    if model.config.form == "deployed":
        if not reference:
            raise ConfigError.expected(
                "reference",
                "recordings like those that the network was trained on, since a deployed network no longer has the "
                "statistics of its norms",
                "none",
                hint="give some, or adapt the training form of the network (a run's folder)",
            )
        return expand(model, _batches(classifier, reference))
    if reference:
        raise ConfigError.expected("reference", "none for a network in its training form", f"{len(reference)} files")
    if not has_running_statistics(model):
        raise ConfigError.expected("model", "a network with batch norms", f"'{model.name}', which has none")
    return copy.deepcopy(model)


def _all_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files, and those in the folders, in a random order that is always the same: folders are sorted by class."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = find_recordings(path)
            if not found:
                raise InputError.expected("recordings", "recordings in the folder", "none", path=path)
            files += found
        else:
            files.append(path)
    files = list(dict.fromkeys(files))
    return [files[at] for at in torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()]


def _batches(classifier: Classifier, files: Sequence[Path]) -> list[Tensor]:
    """Clips [B, T, 2, H, W] of the files, in batches of about equal size, since each has the same weight."""
    clips = torch.stack([make_clip(classifier, read_recording(classifier, file)) for file in files])
    return list(clips.tensor_split(-(-len(clips) // BATCH)))


@torch.no_grad()
def _answers(model: Model, batches: Sequence[Tensor]) -> Tensor:
    """The probabilities of every clip [N, classes]."""
    with eval_mode(model):
        answers = torch.cat([clip_logits(model(batch)).softmax(-1) for batch in batches])
    if not bool(answers.isfinite().all()):
        raise InputError.expected("recordings", "finite logits", "some that are not")
    return answers


def _labels(class_names: Sequence[str], files: Sequence[Path]) -> list[int | None]:
    """The class of every file, by the name of its folder; None where that is not the name of a class."""
    known = {name: index for index, name in enumerate(class_names)}
    return [known.get(file.resolve().parent.name) for file in files]


def _summary(answers: Tensor, labels: Sequence[int | None]) -> AnswerSummary:
    given = answers.argmax(-1).tolist()
    right = [answer == label for answer, label in zip(given, labels, strict=True) if label is not None]
    accuracy = sum(right) / len(right) if right else None
    return AnswerSummary(float(answers.max(-1).values.mean()), accuracy)
