"""The state of a run on disk: tensors and a JSON document in one safetensors file. Nothing is unpickled.

A file is written beside its place and moved into it whole; the last two are kept. A checksum covers the document and
every tensor's name, type, shape and numbers. What is damaged, or does not fit the run, is passed over for the one
before it.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ripe_mambaspike.errors import DataError, one_line
from ripe_mambaspike.files import atomic_write, make_folder, read_regular

LOG = logging.getLogger("ripe_mambaspike")
FORMAT = "ripe-checkpoint"
VERSION = 2
OLD_VERSION = 1  # whose checksum covers the tensors alone; still read, with a warning
KEPT = 2
MAX_BYTES = 4 << 30  # that a checkpoint is read with, where the run does not say how large its own can be
NAME = re.compile(r"move-(\d{9})-(\d{9})\.safetensors")
DAMAGE = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, SafetensorError)


class Checkpoint(NamedTuple):
    tensors: dict[str, Tensor]
    document: dict[str, Any]


Check = Callable[[Checkpoint], None]  # raises a ValueError for a checkpoint that cannot be used


def save_checkpoint(folder: Path, place: tuple[int, int], checkpoint: Checkpoint) -> Path:
    """Write the state reached at `place`, moves and batches so far; all others but the one before are removed then.

    Files of a later place go too: a run that writes this one did not go on from them, because they were damaged.
    """
    path = folder / "move-{:09d}-{:09d}.safetensors".format(*place)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    text = json.dumps({"format": FORMAT, "version": VERSION, **checkpoint.document})
    packed = save(tensors, {"ripe": text, "sha256": checksum(text, tensors)})
    try:
        make_folder(folder)
        with atomic_write(path) as file:
            file.write(packed)
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error.strerror or error}); the checkpoints before it are whole, and a disk "
            "with room is wanted",
            path=path,
        ) from error
    files = _listed(folder)
    written = files.index(path)
    for other in (*files[: max(0, written + 1 - KEPT)], *files[written + 1 :]):
        with suppress(OSError):
            other.unlink()
    return path


def last_checkpoint(folder: Path, check: Check = lambda _: None, most: int = MAX_BYTES) -> Checkpoint | None:
    """The newest state that can be used; None where there is no file. All of them damaged is an error.

    `check` raises a ValueError for a state that does not fit; files of more than `most` bytes are not read.
    """
    files = _listed(folder)
    for path in reversed(files):
        try:
            found = _read(path, most)
            check(found)
        except DAMAGE as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            LOG.warning(f"{path} cannot be used ({one_line(reason, 300)}); the checkpoint before it is tried")
            continue
        if found.document["version"] == OLD_VERSION:
            LOG.warning(f"{path} is of an earlier version, whose checksum does not cover its place and its log")
        return found
    if files:
        raise DataError(
            f"none of the checkpoints in {folder} can be read; a whole one, or another --out, is wanted", path=folder
        )
    return None


def _read(path: Path, most: int) -> Checkpoint:
    data = read_regular(path, most)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    tensors = load(data)
    facts = header["__metadata__"]
    document = json.loads(facts["ripe"])
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"it is no {FORMAT}")
    version = document.get("version")
    if isinstance(version, bool) or version not in (VERSION, OLD_VERSION):
        raise ValueError(f"version: expected {VERSION}, got {str(version)[:20]}")
    found, wanted = checksum(facts["ripe"], tensors), facts.get("sha256")
    if version == OLD_VERSION:
        found, wanted = _old_checksum(tensors), document.pop("sha256")
    if found != wanted:
        raise ValueError("its checksum differs")
    return Checkpoint(tensors, document)


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """Of the document and of every tensor's name, type, shape and numbers, in the order of the names."""
    digest = hashlib.sha256(f"{FORMAT} {VERSION} {len(text)}\n{text}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _old_checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _listed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("move-*.safetensors") if NAME.fullmatch(path.name))
