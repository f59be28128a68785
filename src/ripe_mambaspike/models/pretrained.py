"""Weights on disk: a folder with `config.json` and `model.safetensors`. Nothing is ever unpickled.

The config names the network, its form and the checksum of the weights, so that a damaged, truncated or exchanged
file is noticed before anything is loaded. Both files are written beside their place and moved into it whole; after a
kill between the two moves the earlier network is still loaded.
Weights may be stored smaller (`models.stored`); the network that is loaded has the float32 numbers they stand for.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as pack_tensors
from torch import Tensor

from ripe_mambaspike.errors import ConfigError, WeightsError
from ripe_mambaspike.files import earlier_versions, write_together
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import Form, MambaSpikeConfig, ModelConfig, RipeConfig
from ripe_mambaspike.models.registry import build
from ripe_mambaspike.models.stored import Stored, from_file, precision_of, to_file

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT = "ripe-mambaspike"
VERSION = 1
ARCHITECTURES: dict[str, type[ModelConfig]] = {c.architecture: c for c in (RipeConfig, MambaSpikeConfig)}


def save_pretrained(
    model: Model,
    folder: str | Path,
    *,
    stored: Mapping[str, Stored] | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> Path:
    """Write the network into the folder, made when missing; files of an earlier save there are replaced.

    With `stored` those parameters are kept as they are stored and the others in float32. Files to lie `beside` are
    written with the network or not at all.
    """
    folder = _as_path(folder)
    if not stored:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    else:
        tensors = to_file(model, stored)
    packed = pack_tensors(tensors, {"format": "pt"})
    weights = {"file": WEIGHTS_FILE, "sha256": hashlib.sha256(packed).hexdigest()}
    facts = _facts(model)
    if stored:
        weights["precision"], facts["dtype"] = precision_of(stored), "float32"
    document = {
        "format": FORMAT,
        "version": VERSION,
        "architecture": model.config.architecture,
        "name": model.name,
        "config": model.config.to_dict(),
        **facts,
        "weights": weights,
    }
    files = {**(beside or {}), WEIGHTS_FILE: packed, CONFIG_FILE: (json.dumps(document, indent=2) + "\n").encode()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_together(folder, files)
    except OSError as error:
        raise WeightsError(
            f"{folder} cannot be written ({error.strerror or error}); a folder with room for the network is wanted"
        ) from error
    return folder


def from_pretrained(folder: str | Path, *, form: Form | None = None) -> Model:
    """The network saved in a folder, in evaluation mode. With `form` any other form than that one is refused."""
    folder = _as_path(folder)
    document = _read_config(folder)
    origin = str(folder / CONFIG_FILE)
    architecture = document.get("architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise WeightsError(f"{origin} says architecture {architecture!r}; one of {', '.join(ARCHITECTURES)} is wanted")
    fields = _member(document, "config", dict, origin)
    if missing := [name for name in ARCHITECTURES[architecture].field_names() if name not in fields]:
        raise WeightsError(f"{origin} lacks the field '{missing[0]}' of its config; all fields are wanted")
    try:
        config = ARCHITECTURES[architecture].from_dict(fields, origin)
    except ConfigError as error:
        raise error if origin in str(error) else ConfigError(f"{origin}: {error}") from error
    if form is not None and form not in get_args(Form):
        raise ConfigError(f"form is {form!r}; one of {', '.join(get_args(Form))} is wanted")
    if form is not None and form != config.form:
        raise WeightsError(f"{folder} holds the {config.form} form; the {form} form is wanted")
    weights = _member(document, "weights", dict, origin)
    if not isinstance(weights.get("sha256"), str):
        raise WeightsError(f"{origin} has no checksum of its weights; the file written by save_pretrained is wanted")
    data = _read_weights(folder, weights["sha256"])
    if data is None:
        raise WeightsError(
            f"{folder / WEIGHTS_FILE} is not the file that {CONFIG_FILE} was saved with: its checksum differs, "
            "so it was damaged, cut short or exchanged"
        )
    with torch.device("meta"):
        model = build(config, str(document.get("name", architecture)))
    tensors = _unpack(data, folder / WEIGHTS_FILE)
    if "precision" in weights:
        tensors = from_file(tensors, weights["precision"], str(folder / WEIGHTS_FILE))
    load_weights(model, tensors, str(folder / WEIGHTS_FILE))
    for key, value in _facts(model).items():
        if document.get(key) != value:
            raise WeightsError(f"{origin} says {key} {document.get(key)!r}; the network it describes has {value!r}")
    return model.eval()


def load_weights(model: Model, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Put tensors into a network of the same form; anything missing, left over or of another shape is refused."""
    own = model.state_dict()
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        raise WeightsError(f"{origin} does not fit {_describe(model)}: {_differences(missing, extra)}")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            given, wanted = tuple(tensors[name].shape), tuple(tensor.shape)
            raise WeightsError(f"{origin} has {name} of shape {given}; {_describe(model)} wants {wanted}")
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    if len(dtypes) > 1 or not all(tensor.is_floating_point() for tensor in tensors.values()):
        raise WeightsError(f"{origin} holds {', '.join(sorted(dtypes))}; one floating-point precision is wanted")
    model.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)


def _facts(model: Model) -> dict[str, Any]:
    """What the config says about the weights, for whoever reads it."""
    return {"dtype": str(model.dtype).removeprefix("torch."), "parameters": model.parameter_count()}


def _describe(model: Model) -> str:
    return f"the {model.config.form} form of '{model.name}'"


def _differences(missing: list[str], extra: list[str]) -> str:
    """A sentence's end about tensor names; a file of another form is recognised by what it has."""
    marks = {
        "encoder.": "a Mamba-Spike",
        ".branches.": "a training",
        ".weight_now": "a dual-kernel",
        "first_conv.weight": "a deployed",
    }
    found = next((kind for mark, kind in marks.items() if any(mark in name for name in extra)), None)
    said = f"it is {found} file, and " if found else ""
    parts = []
    for label, names in (("lacks", missing), ("has the unknown", extra)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            parts.append(f"{label} {names[0]}{more}")
    return said + "it " + ", ".join(parts)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not _is_folder(folder):
        raise WeightsError(f"{folder} is not a folder; one with {CONFIG_FILE} and {WEIGHTS_FILE} is wanted")
    try:
        document = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise WeightsError(
            f"{path} is not valid JSON ({error}); the file written by save_pretrained is wanted"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise WeightsError(f"{path} is not a {FORMAT} config; the file written by save_pretrained is wanted")
    if document.get("version") != VERSION:
        raise WeightsError(f"{path} has version {document.get('version')!r}; this package reads version {VERSION}")
    return document


def _member(document: dict[str, Any], key: str, kind: type, origin: str) -> Any:
    value = document.get(key)
    if not isinstance(value, kind):
        raise WeightsError(f"{origin} has {key} {value!r}; an object is wanted")
    return value


def _unpack(data: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(data)
    except (SafetensorError, ValueError, KeyError, OverflowError) as error:
        raise WeightsError(f"{path} is not a readable safetensors file ({error})") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WeightsError(
            f"{path} cannot be read ({error.strerror}); {path.name} of a saved network is wanted"
        ) from error


def _read_weights(folder: Path, sha256: str) -> bytes | None:
    """The file with that checksum: in its place, or kept from a later save that was killed between its two moves."""
    for path in (folder / WEIGHTS_FILE, *earlier_versions(folder / WEIGHTS_FILE)):
        data = _read(path)
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
    return None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name the system cannot even look up
        return False


def _as_path(folder: Any) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise WeightsError(f"a {type(folder).__name__} was given; the path of a folder is wanted")
    return Path(folder)
