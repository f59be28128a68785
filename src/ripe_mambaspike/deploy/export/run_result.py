"""The result of the training run of a checkpoint, for its model card."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ripe_mambaspike.errors import DataError, RipeError
from ripe_mambaspike.inference.checkpoint_data import run_data_settings
from ripe_mambaspike.models.accuracy import EARLIER_FIELDS
from ripe_mambaspike.models.labels import find_checkpoint, read_labels
from ripe_mambaspike.schema import read_json

RESULT_FILE = "result.json"
NETWORK_FOLDERS = ("best", "fused")  # folders of a run that hold the tested network
PICKED = {
    "val": "the epoch was picked on a validation part, and the test part was read once, at the end",
    "test": "the epoch was picked on the test part itself, as the paper did, so the number is too good",
    "last epoch": "the last epoch was taken, nothing was picked, and the test part was read once",
}


class RunResult(msgspec.Struct, frozen=True, kw_only=True, rename={"recipe": "name", "clips": "n"}):
    """The fields of `result.json` that a model card shows."""

    recipe: str
    set: str
    partition: str | None
    picked_on: Literal["val", "test", "last epoch"]
    epoch: int
    top1: Annotated[float, Meta(ge=0, le=1)]
    clips: Annotated[int, Meta(ge=1)]
    fold: int | None = None  # the fold that was tested
    folds: int | None = None
    extra: tuple[str, ...] = ()  # further datasets whose training splits were used


def read_run_result(checkpoint: str | Path) -> RunResult | None:
    """The result of a checkpoint's run; None for a network outside a run, or of an unfinished run."""
    folder = find_checkpoint(checkpoint)
    path = folder.parent / RESULT_FILE
    if folder.name not in NETWORK_FOLDERS or not path.is_file():
        return None
    hint = "pass a run written by ripe train"
    result = read_json(path, RunResult, error=DataError, hint=hint, renamed=EARLIER_FIELDS)
    try:
        labels = read_labels(folder)
        settings = run_data_settings(folder)
    except (RipeError, OSError):
        return None
    if labels.epoch != result.epoch or labels.set != result.set:
        return None  # the run continued, and this network is not the one that was tested
    extra = () if settings is None else tuple(one.partition("=")[0] for one in settings.extra)
    return msgspec.structs.replace(result, extra=extra)
