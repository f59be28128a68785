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
from ripe_mambaspike.files import MAX_JSON, earlier_versions, make_folder, read_regular, write_together
from ripe_mambaspike.models.base import ARCHITECTURES, Model
from ripe_mambaspike.models.config import Form, ModelConfig
from ripe_mambaspike.models.described import difference_from_config, meta_copy, sync_num_classes
from ripe_mambaspike.models.labels import LABELS_FILE, Labels, packed_labels, read_labels
from ripe_mambaspike.models.old_names import CONFIG_FIELDS, rename_tensors
from ripe_mambaspike.models.registry import build
from ripe_mambaspike.models.stored import Stored, from_file, precision_of, to_file

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT = "ripe-mambaspike"
VERSION = 2
OLD_VERSION = 1  # fields and tensors have their earlier names (`models.old_names`)
MAX_NAME = 1000  # characters of a network's name
PRECISIONS = ("float16", "bfloat16", "float32", "float64")
LARGEST_ITEM = 8  # bytes a number
HEADER_BYTES = 1024  # of a safetensors file for each tensor: its name, shape and place


def save_pretrained(
    model: Model,
    folder: str | Path,
    *,
    stored: Mapping[str, Stored] | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> Path:
    """Write the network into the folder, made when missing; files of an earlier save there are replaced.

    With `stored` those parameters are kept as they are stored and the others in float32. Files to lie `beside` are
    written with the network or not at all. What `from_pretrained` would refuse, or would load as another network, is
    refused before anything is written; a head put in by hand for another number of classes is taken over.
    """
    folder = _as_path(folder)
    sync_num_classes(model)
    if not stored:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    else:
        tensors = to_file(model, stored)
    _check_loads(model, tensors, precision_of(stored) if stored else None, folder)
    beside = dict(beside or {})
    if model.labels is not None:
        beside.setdefault(LABELS_FILE, packed_labels(model.labels, folder / LABELS_FILE))
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
    files = {**beside, WEIGHTS_FILE: packed, CONFIG_FILE: (json.dumps(document, indent=2) + "\n").encode()}
    try:
        make_folder(folder)
        write_together(folder, files, stale=() if LABELS_FILE in files else (LABELS_FILE,))
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
    if document["version"] == OLD_VERSION:
        renamed = CONFIG_FIELDS.get(architecture, {})
        fields = {renamed.get(name, name): value for name, value in fields.items()}
    if missing := [name for name in ARCHITECTURES[architecture].config.field_names() if name not in fields]:
        raise WeightsError(f"{origin} lacks the field '{missing[0]}' of its config; all fields are wanted")
    try:
        config = ARCHITECTURES[architecture].config.from_dict(fields, origin)
        config.check_size()
    except ConfigError as error:
        raise error if origin in str(error) else ConfigError(f"{origin}: {error}", field=error.field) from error
    if form is not None and form not in get_args(Form):
        raise ConfigError(f"form is {form!r}; one of {', '.join(get_args(Form))} is wanted")
    if form is not None and form != config.form:
        raise WeightsError(f"{folder} holds the {config.form} form; the {form} form is wanted")
    weights = _member(document, "weights", dict, origin)
    if not isinstance(weights.get("sha256"), str):
        raise WeightsError(f"{origin} has no checksum of its weights; the file written by save_pretrained is wanted")
    name = document.get("name", architecture)
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise WeightsError(
            f"{origin}: name: expected a text of at most {MAX_NAME} characters, got {str(name)[:60]!r}",
            field="name",
            path=origin,
        )
    with torch.device("meta"):
        model = build(config, name)
    data = _read_weights(folder, weights["sha256"], _most_bytes(model, document.get("dtype")))
    if data is None:
        raise WeightsError(
            f"{folder / WEIGHTS_FILE} is not the file that {CONFIG_FILE} was saved with: its checksum differs, "
            "so it was damaged, cut short or exchanged"
        )
    tensors = _unpack(data, folder / WEIGHTS_FILE)
    if document["version"] == OLD_VERSION:
        tensors = rename_tensors(tensors)
    if "precision" in weights:
        tensors = from_file(tensors, weights["precision"], str(folder / WEIGHTS_FILE))
    load_weights(model, tensors, str(folder / WEIGHTS_FILE))
    for key, value in _facts(model).items():
        if document.get(key) != value:
            raise WeightsError(f"{origin} says {key} {document.get(key)!r}; the network it describes has {value!r}")
    model.labels = _read_labels(folder, config)
    return model.eval()


def load_weights(model: Model, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Put tensors into a network of the same form; anything missing, left over, of another shape or not a number is
    refused."""
    check_weights(model, tensors, origin)
    model.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)


def check_weights(model: Model, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Raise unless these are all tensors of this network, in one precision, and finite."""
    own = model.state_dict()
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        raise WeightsError(
            f"{origin} does not fit {_describe(model)}: {_differences(missing, extra)}",
            field=(missing or extra)[0],
            path=origin,
        )
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            given, wanted = tuple(tensors[name].shape), tuple(tensor.shape)
            raise WeightsError(
                f"{origin} has {name} of shape {given}; {_describe(model)} wants {wanted}", field=name, path=origin
            )
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    if len(dtypes) > 1 or not all(tensor.is_floating_point() for tensor in tensors.values()):
        raise WeightsError(f"{origin} holds {', '.join(sorted(dtypes))}; one floating-point precision is wanted")
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise WeightsError(
                f"{origin}: {name}: expected finite numbers, got {_first_bad(tensor)}", field=name, path=origin
            )
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise WeightsError(
                f"{origin}: {name}: expected variances of at least 0, got {float(tensor.min()):.3g}",
                field=name,
                path=origin,
            )


def _check_loads(model: Model, tensors: Mapping[str, Tensor], precision: str | None, folder: Path) -> None:
    """Raise unless the network of the config with these tensors is the one at hand."""
    built = meta_copy(model)
    origin = str(folder / WEIGHTS_FILE)
    check_weights(built, tensors if precision is None else from_file(tensors, precision, origin), origin)
    if (found := difference_from_config(model, built)) is not None:
        raise WeightsError(
            f"{folder} cannot keep this network: {found}; its state_dict can be saved by torch.save",
            field=found.name,
            path=folder,
        )


def _first_bad(tensor: Tensor) -> float:
    return float(tensor[~tensor.isfinite()].flatten()[0])


def _most_bytes(model: Model, dtype: Any) -> int:
    """Of the weights of this network in the precision that its config says, and what describes them."""
    width = getattr(torch, dtype).itemsize if dtype in PRECISIONS else LARGEST_ITEM
    tensors = model.state_dict().values()
    return sum(tensor.numel() for tensor in tensors) * width + (len(tensors) + 1) * HEADER_BYTES


def _read_labels(folder: Path, config: ModelConfig) -> Labels | None:
    if not os.path.lexists(folder / LABELS_FILE):
        return None
    labels = read_labels(folder)
    if len(labels.classes) != config.num_classes:
        raise WeightsError(
            f"{folder / LABELS_FILE}: classes: expected {config.num_classes} names for the network, got "
            f"{len(labels.classes)}",
            field="classes",
            path=folder / LABELS_FILE,
        )
    return labels


def _facts(model: Model) -> dict[str, Any]:
    """What the config says about the weights, for whoever reads it."""
    return {"dtype": str(model.dtype).removeprefix("torch."), "parameters": model.parameter_count()}


def _describe(model: Model) -> str:
    return f"the {model.config.form} form of '{model.name}'"


def _differences(missing: list[str], extra: list[str]) -> str:
    """A sentence's end about tensor names; a file of another form is recognized by what it has."""
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
        document = json.loads(_read(path, MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise WeightsError(
            f"{path} is not valid JSON ({error}); the file written by save_pretrained is wanted"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise WeightsError(f"{path} is not a {FORMAT} config; the file written by save_pretrained is wanted")
    if (version := document.get("version")) not in (OLD_VERSION, VERSION) or isinstance(version, bool):
        raise WeightsError(
            f"version: expected {OLD_VERSION} or {VERSION}, got {version!r}; {path} was written by another version",
            field="version",
            path=path,
        )
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


def _read(path: Path, most: int) -> bytes:
    try:
        return read_regular(path, most)
    except OSError as error:
        raise WeightsError(
            f"{path} cannot be read ({error.strerror}); {path.name} of a saved network is wanted", path=path
        ) from error


def _read_weights(folder: Path, sha256: str, most: int) -> bytes | None:
    """The file with that checksum: in its place, or kept from a later save that was killed between its two moves."""
    for path in (folder / WEIGHTS_FILE, *earlier_versions(folder / WEIGHTS_FILE)):
        data = _read(path, most)
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
    return None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name the system cannot even look up
        return False


def _as_path(folder: Any) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise WeightsError(f"a {type(folder).__name__} was given; the path of a folder is wanted")
    return Path(folder)
