"""The state of a run on disk: tensors and a JSON document in one safetensors file. Nothing is unpickled.

A file is written beside its place and moved into it whole; the last two are kept. What cannot be read is passed over
for the one before it.
"""

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import atomic_write

LOG = logging.getLogger("ripe_mambaspike")
FORMAT = "ripe-checkpoint"
VERSION = 1
KEPT = 2
NAME = re.compile(r"move-(\d{9})-(\d{9})\.safetensors")


class Checkpoint(NamedTuple):
    tensors: dict[str, Tensor]
    document: dict[str, Any]


def save_checkpoint(folder: Path, place: tuple[int, int], checkpoint: Checkpoint) -> Path:
    """Write the state reached at `place`, moves and batches so far; older ones but the last are removed after that."""
    path = folder / "move-{:09d}-{:09d}.safetensors".format(*place)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    document = {"format": FORMAT, "version": VERSION, "sha256": checksum(tensors), **checkpoint.document}
    packed = save(tensors, {"ripe": json.dumps(document)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(packed)
        for old in _listed(folder)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error.strerror or error}); the checkpoints before it are whole, and a disk "
            "with room is wanted"
        ) from error
    return path


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest state that can be read; None where there is no file. All of them damaged is an error."""
    files = _listed(folder)
    for path in reversed(files):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            LOG.warning(f"{path} cannot be used ({str(error).splitlines()[0]}); the checkpoint before it is tried")
    if files:
        raise DataError(f"none of the checkpoints in {folder} can be read; a whole one, or another --out, is wanted")
    return None


def _read(path: Path) -> Checkpoint:
    with safe_open(path, "pt") as file:
        document = json.loads((file.metadata() or {})["ripe"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"it is no {FORMAT} of version {VERSION}")
    if document["sha256"] != checksum(tensors):
        raise ValueError("its checksum differs")
    return Checkpoint(tensors, document)


def checksum(tensors: dict[str, Tensor]) -> str:
    """Of every number, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _listed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("move-*.safetensors") if NAME.fullmatch(path.name))
