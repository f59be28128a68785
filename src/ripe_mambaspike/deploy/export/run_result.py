"""What the run of a checkpoint found, for its card: read from the files that `ripe train` left beside the network."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ripe_mambaspike.errors import DataError, RipeError
from ripe_mambaspike.inference.checkpoint_data import run_data_settings
from ripe_mambaspike.models.labels import find_checkpoint, read_labels
from ripe_mambaspike.schema import read_json

RESULT_FILE = "result.json"
NETWORK_FOLDERS = ("best", "fused")  # of a run, with the network that was tested
PICKED = {
    "val": "the epoch was picked on a validation part, and the test part was read once, at the end",
    "test": "the epoch was picked on the test part itself, as the paper did, so the number is too good",
    "last epoch": "the last epoch was taken, nothing was picked, and the test part was read once",
}


class RunResult(msgspec.Struct, frozen=True, kw_only=True, rename={"recipe": "name", "clips": "n"}):
    """The fields of `result.json` that a card shows, of the network that a run picked."""

    recipe: str
    set: str
    cut: str | None
    picked_on: Literal["val", "test", "last epoch"]
    epoch: int
    top1: Annotated[float, Meta(ge=0, le=1)]
    clips: Annotated[int, Meta(ge=1)]
    fold: int | None = None  # the part that was tested, of so many folds
    folds: int | None = None
    extra: tuple[str, ...] = ()  # sets whose training parts were learned from too


def read_run_result(checkpoint: str | Path) -> RunResult | None:
    """What the run of a checkpoint found with that network; None for a network outside a run, or before its end."""
    folder = find_checkpoint(checkpoint)
    path = folder.parent / RESULT_FILE
    if folder.name not in NETWORK_FOLDERS or not path.is_file():
        return None
    result = read_json(path, RunResult, error=DataError, hint="pass a run written by ripe train")
    try:
        labels = read_labels(folder)
        settings = run_data_settings(folder)
    except (RipeError, OSError):
        return None
    if labels.epoch != result.epoch or labels.set != result.set:
        return None  # the run went on, and this is another network than the one that was tested
    extra = () if settings is None else tuple(one.partition("=")[0] for one in settings.extra)
    return msgspec.structs.replace(result, extra=extra)
