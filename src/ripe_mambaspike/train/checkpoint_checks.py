"""Whether a checkpoint is one that this run could have written: every entry that is read back, and every tensor.

A ValueError ("entry: expected X, got Y") sends the reader to the checkpoint before. What is checked against the recipe
and the clips is meant for files that were changed by hand or come from another run; damage shows in the checksum.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.train.checkpoint import OLD_VERSION, Checkpoint
from ripe_mambaspike.train.recipe_checks import MAX_THREADS
from ripe_mambaspike.train.schedule import steps_per_epoch
from ripe_mambaspike.train.trainer import Trainer

MAX_PROCESSES = 1 << 16
PLACE = ("epoch", "batch", "moves", "clips")
ADAM = ("exp_avg", "exp_avg_sq", "step")
ROOM = 64 << 20  # bytes beside the tensors: the rows of the log


def largest_checkpoint(trainer: Trainer) -> int:
    """Bytes that a checkpoint of this run cannot exceed."""
    network = sum(value.numel() * value.element_size() for value in trainer.model.state_dict().values())
    return ROOM + 4 * network + 16 * 1024 * len(trainer.model.state_dict())


def check_entries(document: Mapping[str, Any], epochs: int) -> None:
    """The JSON document by itself: what it lacks, and values of another kind or beyond the recipe."""
    place = document["place"]
    if not isinstance(place, dict) or set(place) != {*PLACE, "seconds"}:
        raise _wrong("place", place, f"{', '.join(PLACE)} and seconds")
    for name in PLACE:
        _whole(place[name], f"place.{name}", 0)
    _whole(place["epoch"], "place.epoch", 0, epochs)
    _seconds(place["seconds"], "place.seconds")
    _seconds(document["seconds"], "seconds")
    _whole(document.get("processes", 1), "processes", 1, MAX_PROCESSES)
    if not isinstance(document["store"], str) or not document["store"]:
        raise _wrong("store", document["store"], "a key")
    if document["version"] != OLD_VERSION:
        _whole(document["threads"], "threads", 1, MAX_THREADS)
    _check_rows(document["rows"], place["epoch"])
    _check_best(document["best"], place["epoch"])


def check_place(place: Mapping[str, Any], trainer: Trainer) -> None:
    """A place that lies on this run's way through these clips."""
    recipe, clips = trainer.recipe, len(trainer.clips)
    _whole(place["batch"], "place.batch", 0, trainer.batches)
    if place["epoch"] == recipe.schedule.epochs:
        _whole(place["batch"], "place.batch", 0, 0)
    an_epoch = steps_per_epoch(clips, recipe, trainer.processes.world)
    moves = place["epoch"] * an_epoch + -(-place["batch"] // recipe.schedule.grad_accum_steps)
    _whole(place["moves"], "place.moves", moves, moves)
    seen = min(clips, place["batch"] * recipe.schedule.batch_size * trainer.processes.world)
    _whole(place["clips"], "place.clips", seen, seen)


def check_tensors(tensors: Mapping[str, Tensor], trainer: Trainer) -> None:
    """The network's, the optimizer's, the average's and the sums: all there, of the right type and shape, finite."""
    wanted = {f"model.{name}": value for name, value in trainer.model.state_dict().items()}
    if trainer.average is not None:
        wanted |= {f"average.{name}": value for name, value in trainer.average.tensors().items()}
    wanted["sums"] = trainer.sums
    moved = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(moved):
        names = [f"optimizer.{index}.{name}" for name in ADAM]
        if any(name in tensors for name in names):  # a parameter that never had a gradient has none
            wanted |= dict(zip(names, (parameter, parameter, torch.zeros((), dtype=torch.float32)), strict=True))
    if differing := sorted(wanted.keys() ^ tensors.keys()):
        raise ValueError(f"{differing[0]}: expected {'a' if differing[0] in wanted else 'no'} tensor of that name")
    for name, value in wanted.items():
        found = tensors[name]
        if found.shape != value.shape or found.dtype != value.dtype:
            given = f"{tuple(found.shape)} {found.dtype}"
            raise ValueError(f"{name}: expected {tuple(value.shape)} {value.dtype}, got {given}")
        if found.is_floating_point() and not torch.isfinite(found).all():
            raise ValueError(f"{name}: expected finite numbers")
        if name.endswith(("exp_avg_sq", ".step")) and (found < 0).any():
            raise ValueError(f"{name}: expected numbers of at least 0")


def check_checkpoint(checkpoint: Checkpoint, trainer: Trainer, store: str) -> None:
    """All of it; its place in an epoch only where it is of these clips and as many processes."""
    document = checkpoint.document
    check_entries(document, trainer.recipe.schedule.epochs)
    check_tensors(checkpoint.tensors, trainer)
    if document["store"] == store and document.get("processes", 1) == trainer.processes.world:
        check_place(document["place"], trainer)


def _check_rows(rows: Any, epochs: int) -> None:
    if not isinstance(rows, list) or len(rows) != epochs:
        raise _wrong("rows", rows, f"{epochs}, one an epoch")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or row.get("epoch") != number:
            raise _wrong(f"rows[{number - 1}]", row, f"the row of epoch {number}")
        for name, value in row.items():
            if value is not None and not _is_number(value):
                raise _wrong(f"rows[{number - 1}].{name}", value, "a number or null")


def _check_best(best: Any, epochs: int) -> None:
    if best is None:
        return
    if not isinstance(best, dict) or set(best) != {"epoch", "score"}:
        raise _wrong("best", best, "epoch and score, or null")
    _whole(best["epoch"], "best.epoch", 1, epochs)
    score = best["score"]
    if not isinstance(score, list) or len(score) != 2 or not all(_is_number(one) for one in score):
        raise _wrong("best.score", score, "two numbers")
    if not math.isfinite(score[0]) or math.isnan(score[1]):
        raise _wrong("best.score", score, "numbers that can be compared")


def _whole(value: Any, name: str, least: int, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        above = "" if most is None else f" to {most}"
        raise _wrong(name, value, f"{least}" if least == most else f"an int from {least}{above}")


def _seconds(value: Any, name: str) -> None:
    if not _is_number(value) or not 0 <= value < math.inf:
        raise _wrong(name, value, "a finite number of at least 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong(name: str, value: Any, wanted: str) -> ValueError:
    return ValueError(f"{name}: expected {wanted}, got {str(value)[:60]!r}")
