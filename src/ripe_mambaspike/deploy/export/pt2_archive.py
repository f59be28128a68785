"""Parses a `.pt2` archive, checks every member, and rebuilds the archive from the checked parts.

PyTorch gets only the rebuilt archive, which has no hidden or duplicate members that another zip reader might see.
"""

import io
import json
import re
import zipfile
from collections.abc import Mapping
from typing import Any

from ripe_mambaspike.deploy.export.pt2_checks import UnknownPartError
from ripe_mambaspike.deploy.export.pt2_schema import PROGRAM, SCALARS, payload

ROOT = "archive"
FACTS = "ripe.json"
SAMPLES = "data/sample_inputs/model.pt"
MODEL = "models/model.json"
WEIGHTS, CONSTANTS = "data/weights/", "data/constants/"
CONFIGS = {f"{WEIGHTS}model_weights_config.json": "weight", f"{CONSTANTS}model_constants_config.json": "tensor"}
# Short notes of the format, each with its allowed content.
NOTES = {
    "archive_format": re.compile(rb"pt2"),
    "archive_version": re.compile(rb"\d{1,4}"),
    "byteorder": re.compile(rb"little"),
    "version": re.compile(rb"\d{1,4}\n?"),
    ".data/version": re.compile(rb"\d{1,4}\n?"),
    ".data/serialization_id": re.compile(rb"\d{1,100}"),
}
TENSORS = re.compile(r"data/(weights/weight|constants/tensor)_\d{1,7}", re.ASCII)
MAX_MEMBERS = 100_000


def members_of(data: bytes) -> dict[str, bytes]:
    """Every member by its name in the archive's folder, with its checksum verified; raises a ValueError if invalid.

    Members are not compressed, so together they are no larger than the file.
    """
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        if len(entries) > MAX_MEMBERS or sum(entry.file_size for entry in entries) > len(data):
            raise UnknownPartError("archive", "members that are no larger than the file", f"{len(entries)} members")
        roots = {entry.filename.partition("/")[0] for entry in entries}
        for entry in entries:
            name = entry.filename.partition("/")[2]
            if len(roots) != 1 or not name or name in found:
                raise UnknownPartError("archive", "members of one folder, each once", entry.filename)
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise UnknownPartError(name, "stored bytes", "compressed or encrypted ones")
            found[name] = archive.read(entry)
    return found


def written(members: Mapping[str, bytes]) -> bytes:
    """The archive of these members."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(f"{ROOT}/{name}", data)
    return held.getvalue()


def rebuilt(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """The archive rebuilt from checked parts, and this package's metadata; raises a ValueError if invalid."""
    members = members_of(data)
    needed = {"archive_format", "archive_version", MODEL, SAMPLES, *CONFIGS, f"extra/{FACTS}"}
    if lacking := sorted(needed - members.keys()):
        raise UnknownPartError(lacking[0], "a part that ripe export writes", "none")
    facts = _facts(members[f"extra/{FACTS}"])
    kept = {}
    for name, content in members.items():
        if name == MODEL:
            content = json.dumps(PROGRAM(_json(name, content), name)).encode()
        elif name in CONFIGS:
            content = json.dumps(_checked_tensors(name, content, members)).encode()
        elif name == SAMPLES:
            if content:
                raise UnknownPartError(name, "nothing to unpickle", f"{len(content)} bytes")
        elif name in NOTES:
            if not NOTES[name].fullmatch(content):
                raise UnknownPartError(name, "a note of the format", content[:60])
        elif name == f"extra/{FACTS}":
            content = json.dumps(facts).encode()
        elif not TENSORS.fullmatch(name):
            raise UnknownPartError("archive", "parts that ripe export writes", name)
        kept[name] = content
    return written(kept), facts


def _json(name: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnknownPartError(name, "valid JSON", type(error).__name__) from error


def _facts(content: bytes) -> dict[str, Any]:
    facts = _json(FACTS, content)
    if not isinstance(facts, dict) or facts.get("kind") not in ("clip", "step", "tail"):
        raise UnknownPartError(f"{FACTS}.kind", "clip, step or tail", facts)
    if not isinstance(facts.get("dynamic"), bool):
        raise UnknownPartError(f"{FACTS}.dynamic", "true or false", facts.get("dynamic"))
    return facts


def _checked_tensors(name: str, content: bytes, members: Mapping[str, bytes]) -> dict[str, Any]:
    """The tensor table, checked so that every tensor is within its member."""
    config: dict[str, Any] = payload(CONFIGS[name])(_json(name, content), name)
    folder = name.rpartition("/")[0]
    for tensor, entry in config["config"].items():
        meta, field = entry["tensor_meta"], f"{name}.{tensor}"
        sizes, strides = ([one["as_int"] for one in meta[key]] for key in ("sizes", "strides"))
        stored = members.get(f"{folder}/{entry['path_name']}")
        if stored is None or len(sizes) != len(strides) or len(sizes) > 64:
            raise UnknownPartError(field, "a tensor that is there", entry["path_name"])
        last = meta["storage_offset"]["as_int"] + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        if 0 not in sizes and (last + 1) * SCALARS[meta["dtype"]] > len(stored):
            raise UnknownPartError(field, f"a tensor within its {len(stored)} bytes", sizes)
    return config
