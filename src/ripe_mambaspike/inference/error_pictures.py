"""A picture of every recording that a network classifies wrongly, in one folder that is written whole or not at all."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ripe_mambaspike.data.loading import EventDataset
from ripe_mambaspike.data.samples import spread_over_classes
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.view.words import clean
from ripe_mambaspike.folders import atomic_folder
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.predict import prediction_of
from ripe_mambaspike.inference.prediction_picture import view_prediction
from ripe_mambaspike.models.base import clip_logits

MAX_STEM_BYTES = 200  # file systems allow 255


@dataclass(frozen=True)
class ErrorPictures:
    """How many recordings were classified wrongly, and how many of them were drawn."""

    folder: str
    wrong: int
    drawn: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_errors(folder: Path, max_errors: int) -> None:
    """Refuse what could not be written, before anything is computed."""
    if max_errors < 1:
        raise InputError.expected("max_errors", "at least 1", max_errors)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            got = "one with files" if folder.is_dir() else "a file"
            raise InputError.expected("errors", "a new or an empty folder", got, path=folder)
    except OSError as error:
        raise InputError.expected("errors", "a folder that can be written", error, path=folder) from error


def draw_errors(
    classifier: Classifier, events: EventDataset, logits: Tensor, folder: Path, max_errors: int
) -> ErrorPictures:
    """Draw recordings that the logits of their steps [N, T, classes] classify wrongly, as TRUE_as_PREDICTED_NAME.png.

    Of more than `max_errors`, those of all classes by turns. Without an error nothing is written.
    """
    answers, labels = clip_logits(logits).argmax(-1).tolist(), events.labels.tolist()
    wrong = [number for number, (answer, label) in enumerate(zip(answers, labels, strict=True)) if answer != label]
    chosen = [wrong[place] for place in spread_over_classes([labels[number] for number in wrong], max_errors)]
    if not chosen:
        return ErrorPictures(str(folder), 0, 0)
    names = events.names
    used: set[str] = set()
    try:
        with atomic_folder(folder) as made:
            for number in chosen:
                recording, label = events[number]
                prediction = prediction_of(classifier, recording, logits[number : number + 1])
                true, said = classifier.class_names[label], classifier.class_names[answers[number]]
                stem = _stem(f"{true}_as_{said}_{names[number]}", used)
                view_prediction(recording, prediction, made / f"{stem}.png", title=f"{names[number]} ({true})")
    except OSError as error:
        raise InputError.expected("errors", "a folder that can be written", error, path=folder) from error
    return ErrorPictures(str(folder), len(wrong), len(used))


def _stem(text: str, used: set[str]) -> str:
    """A file's name without its ending that is not in use, in lower and upper case alike."""
    plain = clean(text, MAX_STEM_BYTES).replace("/", "_").replace("\\", "_").replace(":", "_")
    stem = plain.encode()[:MAX_STEM_BYTES].decode(errors="ignore").lstrip(".") or "recording"
    name, count = stem, 1
    while name.casefold() in used:
        count += 1
        name = f"{stem}-{count}"
    used.add(name.casefold())
    return name
