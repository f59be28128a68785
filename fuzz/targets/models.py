"""Folders of saved networks: config.json, labels.json and model.safetensors, changed alone or consistently."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from fuzz.mutate import dump, mutate, mutate_json
from fuzz.target import Target, WrongAnswer
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.models.labels import (
    CONFIG_FILE,
    LABELS_FILE,
    Calibration,
    Labels,
    UnknownRule,
    read_labels,
    save_labels,
)
from ripe_mambaspike.models.pretrained import WEIGHTS_FILE, from_pretrained, save_pretrained
from ripe_mambaspike.models.registry import create_model

FIELDS: dict[str, Any] = {"stage_channels": (4, 4, 4), "embed_dims": (4, 4, 4), "time_steps": 2, "in_size": 8}
NAMES = (CONFIG_FILE, LABELS_FILE, WEIGHTS_FILE)
LABELS = Labels(
    ("a", "b", "c"), "folder", "share-0.2", 2, (8, 8), "time", False, 3, "validation", "0123456789abcdef", (16, 16),
    (0, 0, 16, 16), 1000,
    Calibration(temperature=1.5, set="folder", split="val", store="0123456789abcdef", clips=9,
                unknown=UnknownRule(score="energy", threshold=-0.5, keep=0.95)),
)  # fmt: skip


def network_folder() -> dict[str, bytes]:
    """The files of a small deployed network."""
    with tempfile.TemporaryDirectory() as place:
        save_pretrained(create_model("nmnist", form="deployed", num_classes=3, seed=0, **FIELDS), place)
        save_labels(LABELS, place)
        return {name: (Path(place) / name).read_bytes() for name in NAMES}


def packed(files: dict[str, bytes]) -> bytes:
    """Several files as one case."""
    return json.dumps({name: data.hex() for name, data in files.items()}).encode()


def unpacked(case: bytes) -> dict[str, bytes]:
    return {name: bytes.fromhex(data) for name, data in json.loads(case).items()}


def change_folder(case: bytes, random: Random, checked: dict[str, tuple[str, ...]]) -> bytes:
    """Change one file; often its stored checksum is updated too, so that the change is not detected by it.

    `checked` maps a file to the location of its checksum: (document, key, key …).
    """
    files = unpacked(case)
    name = random.choice(list(files))
    if name.endswith(".json") and random.random() < 0.7:
        files[name] = mutate_json(files[name], random)
    else:
        files[name] = mutate(files[name], random, list(files.values()))
    if name in checked and random.random() < 0.8:
        holder, *keys = checked[name]
        document = json.loads(files[holder])
        place = document
        for key in keys[:-1]:
            place = place[int(key) if isinstance(place, list) else key]
        place[keys[-1]] = hashlib.sha256(files[name]).hexdigest()
        if "bytes" in place:
            place["bytes"] = len(files[name])
        files[holder] = dump(document)
    return packed(files)


def lay_out(case: bytes, folder: Path) -> dict[str, bytes]:
    files = unpacked(case)
    for old in folder.iterdir():
        old.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return files


def make(name: str) -> Target:
    if name == "labels":
        seed = json.dumps(LABELS.to_dict()).encode()
        return Target(name, "others", [seed], _read_labels, allowed=(RipeError,), change=mutate_json)
    files = network_folder()
    return folder_target(name, files, _load(files), {WEIGHTS_FILE: (CONFIG_FILE, "weights", "sha256")})


def folder_target(
    name: str, files: dict[str, bytes], run: Callable[[bytes, Path], None], checked: dict[str, tuple[str, ...]]
) -> Target:
    """A target whose cases are whole folders: only its own mutation is used."""
    change = partial(change_folder, checked=checked)
    return Target(name, "others", [packed(files)], run, allowed=(RipeError,), change=change, change_share=1)


def _read_labels(case: bytes, folder: Path) -> None:
    (folder / LABELS_FILE).write_bytes(case)
    read_labels(folder)


def _load(original: dict[str, bytes]):  # type: ignore[no-untyped-def]
    def run(case: bytes, folder: Path) -> None:
        files = lay_out(case, folder)
        model = from_pretrained(folder)
        if LABELS_FILE in files:
            read_labels(folder)
        weights = model.state_dict().values()
        if not all(bool(tensor.isfinite().all()) for tensor in weights if tensor.is_floating_point()):
            raise WrongAnswer("weights that are not finite were loaded")
        if files[CONFIG_FILE] == original[CONFIG_FILE] and files[WEIGHTS_FILE] != original[WEIGHTS_FILE]:
            raise WrongAnswer("weights were loaded that are not those the config was saved with")
        steps, side = min(int(model.config.time_steps), 4), 8
        with torch.no_grad():
            model(torch.zeros(1, steps, 2, side, side, dtype=model.dtype))

    return run
