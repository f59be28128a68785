"""How well a network tells recordings of classes that it was never shown from known ones."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.data.clips import Clips, EvalBatches
from ripe_mambaspike.data.loading import load_dataset
from ripe_mambaspike.data.sets.folder import find_recordings
from ripe_mambaspike.data.sets.registry import datasets
from ripe_mambaspike.data.training_data import TrainingData
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.region import format_size
from ripe_mambaspike.inference.classifier import Classifier, make_clip, read_recording
from ripe_mambaspike.inference.recorded import record_logits
from ripe_mambaspike.inference.unknown import SCORES, auroc, score_of
from ripe_mambaspike.models.accuracy import EVAL_BATCH


@dataclass(frozen=True)
class NamedClasses:
    """The same where one class of the network stands for everything else: what is given to it is unknown, too."""

    other_class: str
    known: int  # clips of the other classes
    auroc: float  # of the probability of the best class but this one
    kept: float  # the share of the known clips that are not given to this class
    rejected: float  # the share of the recordings of other classes that are


@dataclass(frozen=True)
class UnknownEvaluation:
    """Known clips against recordings of other classes. Shares are from 0 to 1; None without a stored threshold."""

    source: str
    n: int  # recordings of other classes
    known: int  # clips of the network's classes
    auroc: dict[str, float]  # of every score
    score: str | None  # of the stored rule
    threshold: float | None
    kept: float | None  # the share of the known clips that reach the threshold
    rejected: float | None  # the share of the others that do not
    answers: dict[str, int]  # how many of the others were given to which class, the most frequent first
    named: "NamedClasses | None" = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def evaluate_unknown(
    classifier: Classifier,
    known: Tensor,
    labels: Tensor,
    source: str,
    others: Iterable[Tensor],
    other_class: str | None = None,
) -> UnknownEvaluation:
    """Logits [N, classes] and labels [N] of known clips against batches of clips [B, T, 2, H, W] of other classes."""
    logits = record_logits(classifier.model, others)
    rule, scores = classifier.unknown, {name: (score_of(name, known), score_of(name, logits)) for name in SCORES}
    kept = rejected = None
    if rule is not None:
        own, others = scores[rule.score]
        kept = float((own >= rule.threshold).double().mean())
        rejected = float((others < rule.threshold).double().mean())
    counted = Counter(logits.argmax(-1).tolist()).most_common()
    return UnknownEvaluation(
        source=source,
        n=len(logits),
        known=len(known),
        auroc={name: auroc(own, others) for name, (own, others) in scores.items()},
        score=None if rule is None else rule.score,
        threshold=None if rule is None else rule.threshold,
        kept=kept,
        rejected=rejected,
        answers={classifier.class_names[label]: count for label, count in counted},
        named=None if other_class is None else evaluate_named(classifier, known, labels, logits, other_class),
    )


def evaluate_named(
    classifier: Classifier, known: Tensor, labels: Tensor, others: Tensor, other_class: str
) -> NamedClasses:
    """Logits of known clips [N, classes] and of other recordings [M, classes], with a class for everything else."""
    other = classifier.class_names.index(other_class)
    own = known[labels != other]
    names = [label for label in range(known.shape[1]) if label != other]
    scores = [torch.softmax(logits, -1)[:, names].max(-1).values for logits in (own, others)]
    given = [float((logits.argmax(-1) == other).double().mean()) for logits in (own, others)]
    return NamedClasses(other_class, len(own), auroc(*scores), 1 - given[0], given[1])


def check_other_class(classifier: Classifier, other_class: str | None, unknown: str | Path | None) -> None:
    """Raise unless it is one of the network's classes, and there are recordings to compare with."""
    if other_class is None:
        return
    if unknown is None:
        raise InputError.expected("other_class", "none without unknown", repr(other_class))
    if other_class not in classifier.class_names:
        raise InputError.expected("other_class", f"one of {', '.join(classifier.class_names)}", repr(other_class))


def unknown_clips(classifier: Classifier, given: str | Path, split: str, data: TrainingData) -> Iterable[Tensor]:
    """Batches of clips [B, T, 2, H, W] of a folder of recordings, or of the split of DATASET=ROOT.

    Recordings of one of the network's classes are refused, before the first batch.
    """
    given = str(given)
    name, equals, root = given.partition("=")
    if equals and name in datasets():
        return _of_dataset(classifier, name, root, split, data)
    folder = Path(given)
    if not folder.is_dir():
        raise InputError.expected("unknown", "a folder of recordings, or DATASET=ROOT", repr(given))
    found = find_recordings(folder)
    if not found:
        raise InputError.expected("unknown", "recordings in the folder", "none", path=folder)
    _check_classes(classifier, {path.resolve().parent.name for path in found}, given)
    return _of_files(classifier, found)


def _of_dataset(classifier: Classifier, name: str, root: str, split: str, data: TrainingData) -> Iterable[Tensor]:
    events = load_dataset(name, root, split)
    _check_classes(classifier, {events.classes[label] for label in events.labels}, f"{name}={root}")
    if events.sensor_size != data.store.sensor_size:  # then its size alone would tell a recording apart
        wanted = f"recordings of the {format_size(data.store.sensor_size)} sensor of the known clips"
        raise InputError.expected("unknown", wanted, f"{format_size(events.sensor_size)} of {name}")
    settings = replace(data.settings, dataset=name, root=root, extra=(), first=(), cache="off")
    clips = Clips([events], [events.labels], settings)
    return (x for x, _ in EvalBatches(clips, EVAL_BATCH, classifier.device))


def _of_files(classifier: Classifier, paths: list[Path]) -> Iterator[Tensor]:
    for start in range(0, len(paths), EVAL_BATCH):
        batch = paths[start : start + EVAL_BATCH]
        clips = [make_clip(classifier, read_recording(classifier, path)) for path in batch]
        yield torch.stack(clips).to(classifier.device)


def _check_classes(classifier: Classifier, names: set[str], given: str) -> None:
    if both := sorted(names & set(classifier.class_names)):
        got = f"'{both[0]}' in {given}"
        raise InputError.expected("unknown", "recordings of classes that the network was not shown", got)
