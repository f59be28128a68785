"""The test result of a network's training run, for its model card."""

from pathlib import Path
from typing import NamedTuple

from ripe_mambaspike.data.settings import read_data_settings
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.models.evaluate import read_result
from ripe_mambaspike.models.labels import find_checkpoint, read_labels

RECIPE_FILE = "recipe.yaml"
NETWORK_FOLDERS = ("best", "fused")  # a run's folders with the network that was tested
PICKED = {
    "val": "the epoch was selected on validation clips, and the test clips were used once, at the end",
    "test": "the epoch was selected on the test clips themselves, as in the paper, so the number is too good",
    "last epoch": "the last epoch was taken, nothing was selected, and the test clips were used once",
}


class CardResult(NamedTuple):
    """Of the network that a run selected."""

    recipe: str
    set: str
    cut: str | None
    picked_on: str
    epoch: int
    top1: float
    clips: int
    fold: int | None = None  # the part that was tested, of so many folds
    folds: int | None = None
    extra: tuple[str, ...] = ()  # other datasets that were trained on


def read_card_result(checkpoint: str | Path) -> CardResult | None:
    """The result of a network's run; None for a network outside a run, or before the run has ended."""
    folder = find_checkpoint(checkpoint)
    result = read_result(folder.parent) if folder.name in NETWORK_FOLDERS else None
    if result is None:
        return None
    try:
        labels = read_labels(folder)
    except RipeError:
        return None
    if (labels.epoch, labels.set) != (result.epoch, result.set):
        return None  # the run went on, and this is another network than the one that was tested
    try:
        extra = read_data_settings(folder.parent / RECIPE_FILE).extra
    except RipeError:  # other datasets are then not mentioned
        extra = ()
    return CardResult(
        result.name, result.set, result.cut, result.picked_on, result.epoch, result.top1, result.n,
        result.fold if result.folds else None, result.folds, tuple(one.partition("=")[0] for one in extra),
    )  # fmt: skip
