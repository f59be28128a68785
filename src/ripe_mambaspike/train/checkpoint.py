"""The state of a run on disk: tensors and a JSON document in one safetensors file. Nothing is unpickled.

A file is written to a temporary file and renamed; the last two are kept. A checksum covers the document and every
tensor's name, dtype, shape and values. A file that is damaged or does not fit the run is skipped for the one before it.
"""

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import torch
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ripe_mambaspike.data.settings import Positive
from ripe_mambaspike.errors import DataError, InputError, one_line
from ripe_mambaspike.files import atomic_write, make_folder, read_regular
from ripe_mambaspike.schema import Document, convert
from ripe_mambaspike.train.history import Row
from ripe_mambaspike.train.recipe import MAX_THREADS
from ripe_mambaspike.train.trainer import TrainState

LOG = logging.getLogger("ripe_mambaspike")
FORMAT: Final = "ripe-checkpoint"
VERSION: Final = 3
KEPT_FILES = 2
MAX_BYTES = 4 << 30  # of a checkpoint, if the run cannot bound its own
NAME = re.compile(r"step-(\d{9})-(\d{9})\.safetensors")
EARLIER_NAME = "move-*.safetensors"  # of versions 1 and 2, whose tensors had other names
DAMAGE = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, SafetensorError)


class BestEpoch(Document, frozen=True):
    """The epoch selected so far."""

    epoch: Positive
    score: tuple[float, float]  # accuracy and negative loss of the selecting split; larger is better

    def __post_init__(self) -> None:
        if not math.isfinite(self.score[0]) or math.isnan(self.score[1]):
            raise ValueError("score: expected numbers that can be compared")


class CheckpointDocument(Document, frozen=True, kw_only=True):
    """The state of a run except its tensors."""

    format: Literal["ripe-checkpoint"] = FORMAT
    version: Literal[3] = VERSION
    state: TrainState
    rows: list[Row]  # of log.csv, one per epoch
    best: BestEpoch | None
    seconds: Annotated[float, Meta(ge=0, le=1e15)]  # of the whole run
    processes: Annotated[int, Meta(ge=1, le=1 << 16)]
    store: Annotated[str, Meta(min_length=1)]  # key of the prepared dataset
    extra_stores: list[str]
    threads: Annotated[int, Meta(ge=1, le=MAX_THREADS)]


class Checkpoint(NamedTuple):
    tensors: dict[str, Tensor]
    document: CheckpointDocument


Check = Callable[[Checkpoint], None]  # raises a ValueError for a checkpoint that cannot be used


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, then remove all others except the one before it.

    Files of later steps are removed too: a run that writes this one skipped them because they were damaged.
    """
    state = checkpoint.document.state
    path = folder / f"step-{state.global_step:09d}-{state.epoch:09d}.safetensors"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    text = json.dumps(msgspec.to_builtins(checkpoint.document))
    packed = save(tensors, {"ripe": text, "sha256": checkpoint_digest(text, tensors)})
    try:
        make_folder(folder)
        with atomic_write(path) as file:
            file.write(packed)
    except OSError as error:
        hint = "earlier checkpoints are intact: free some disk space and resume"
        raise DataError.expected("checkpoint", "a file that can be written", error, path=path, hint=hint) from error
    files = _listed(folder)
    written = files.index(path)
    for other in (*files[: max(0, written + 1 - KEPT_FILES)], *files[written + 1 :]):
        with suppress(OSError):
            other.unlink()
    return path


def last_checkpoint(folder: Path, check: Check = lambda _: None, max_bytes: int = MAX_BYTES) -> Checkpoint | None:
    """The newest usable checkpoint; None if there is no file. Raises if all of them are damaged.

    `check` raises a ValueError for a checkpoint that does not fit; files of more than `max_bytes` are not read.
    """
    files = _listed(folder)
    for path in reversed(files):
        try:
            found = _read(path, max_bytes)
            check(found)
        except DAMAGE as error:
            reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
            then = "; trying the checkpoint before it" if path != files[0] else ""
            LOG.warning(f"{path} cannot be used ({one_line(reason, 300)}){then}")
            continue
        return found
    if files:
        raise DataError.expected("checkpoint", "one that can be used", "none", path=folder, hint=restart_hint(folder))
    if earlier := sorted(folder.glob(EARLIER_NAME)):
        hint = "finish the run with the version that began it, or start again with another --out"
        raise DataError.expected("version", str(VERSION), "an earlier one", path=earlier[-1], hint=hint)
    return None


def restart_hint(folder: Path) -> str:
    """What to do with checkpoints that a run cannot go on from."""
    return f"remove {folder} to start the run again, or use another --out"


def _read(path: Path, max_bytes: int) -> Checkpoint:
    data = read_regular(path, max_bytes)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    tensors = load(data)
    metadata = header["__metadata__"]
    document = convert(json.loads(metadata["ripe"]), CheckpointDocument, error=InputError, finite=False)
    if metadata.get("sha256") != checkpoint_digest(metadata["ripe"], tensors):
        raise ValueError("its checksum differs")
    return Checkpoint(tensors, document)


def checkpoint_digest(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of the document and of every tensor's name, type, shape and values, in the order of the names."""
    digest = hashlib.sha256(f"{FORMAT} {VERSION} {len(text)}\n{text}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _listed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*.safetensors") if NAME.fullmatch(path.name))
