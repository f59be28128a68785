"""What the run of a checkpoint found, for its card: read from the files that `ripe train` left beside the network."""

import json
from pathlib import Path
from typing import NamedTuple

from ripe_mambaspike.errors import DataError, RipeError
from ripe_mambaspike.events.view.words import clean
from ripe_mambaspike.files import MAX_JSON, read_regular
from ripe_mambaspike.models.labels import LABELS_FILE, find_checkpoint
from ripe_mambaspike.train.recipes import load_recipe

RESULT_FILE, RECIPE_FILE = "result.json", "recipe.yaml"  # as in train.run
NETWORK_FOLDERS = ("best", "fused")  # a run's folders with the network that was tested
PICKED = {
    "val": "the epoch was picked on a validation part, and the test part was read once, at the end",
    "test": "the epoch was picked on the test part itself, as the paper did, so the number is too good",
    "last epoch": "the last epoch was taken, nothing was picked, and the test part was read once",
}


class RunResult(NamedTuple):
    """Of the network that a run picked."""

    recipe: str
    set: str
    cut: str | None
    picked_on: str
    epoch: int
    top1: float
    clips: int
    fold: int | None = None  # the part that was tested, of so many folds
    folds: int | None = None
    extra: tuple[str, ...] = ()  # sets whose training parts were learned from too


def read_run_result(checkpoint: str | Path) -> RunResult | None:
    """What the run of a checkpoint found with that network; None for a network outside a run, or before its end."""
    folder = find_checkpoint(checkpoint)
    path = folder.parent / RESULT_FILE
    if folder.name not in NETWORK_FOLDERS or not path.is_file():
        return None
    result = parse_run_result(path)
    try:
        labels = json.loads(read_regular(folder / LABELS_FILE, MAX_JSON))
        if labels["epoch"] != result.epoch or labels["data"]["set"] != result.set:
            return None  # the run went on, and this is another network than the one that was tested
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    try:
        extra = load_recipe(folder.parent / RECIPE_FILE).data.extra
    except (RipeError, OSError):  # what else was learned from is then not said
        return result
    return result._replace(extra=tuple(one.partition("=")[0] for one in extra))


def parse_run_result(path: Path) -> RunResult:
    """The result.json of a run."""
    try:
        document = json.loads(read_regular(path, MAX_JSON))
        folds = document.get("folds")
        result = RunResult(
            recipe=str(document["name"]),
            set=str(document["set"]),
            cut=None if document["cut"] is None else str(document["cut"]),
            picked_on=str(document["picked_on"]),
            epoch=int(document["epoch"]),
            top1=float(document["top1"]),
            clips=int(document["n"]),
            fold=int(document["fold"]) if folds else None,
            folds=int(folds) if folds else None,
        )
        if not 0 <= result.top1 <= 1 or result.clips < 1 or result.picked_on not in PICKED:
            raise ValueError("a share of its clips and what picked the network are wanted in it")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); a run's result is wanted") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path} is not a run's result ({clean(said)}); the file written by ripe train is wanted"
        ) from error
    return result
