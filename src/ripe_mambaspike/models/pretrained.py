"""Weights on disk: a folder with `config.json` and `model.safetensors`. Nothing is unpickled.

The config names the network, its form and the checksum of the weights, so that a damaged, truncated or replaced file is
detected before anything is loaded. Both files are written to temporary files and renamed; after a kill between the two
renames the earlier network is still loaded. Weights may be stored as int8 or float16 (`models.stored`); they are loaded
as float32.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import torch
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as pack_tensors
from torch import Tensor

from ripe_mambaspike.errors import ConfigError, WeightsError
from ripe_mambaspike.files import earlier_versions, make_folder, read_regular, write_together
from ripe_mambaspike.models.base import ARCHITECTURES, Model
from ripe_mambaspike.models.config import Form, ModelConfig
from ripe_mambaspike.models.config_check import difference_from_config, sync_num_classes
from ripe_mambaspike.models.hub import is_hub_id, load_from_hub
from ripe_mambaspike.models.labels import (
    CONFIG_FILE,
    LABELS_FILE,
    Labels,
    find_checkpoint,
    packed_labels,
    read_labels,
)
from ripe_mambaspike.models.old_names import CONFIG_FIELDS, rename_tensors, with_added_fields
from ripe_mambaspike.models.registry import meta_model
from ripe_mambaspike.models.stored import Stored, from_file, precision_of, to_file
from ripe_mambaspike.schema import read_json

WEIGHTS_FILE = "model.safetensors"
FORMAT = "ripe-mambaspike"
VERSION = 2
OLD_VERSION = 1  # fields and tensors have their earlier names (`models.old_names`)
MAX_NAME = 1000  # characters of a network's name
PRECISIONS = ("float16", "bfloat16", "float32", "float64")
MAX_ITEM_BYTES = 8  # bytes a number
HEADER_BYTES = 1024  # of a safetensors file for each tensor: its name, shape and place


def save_pretrained(
    model: Model,
    folder: str | Path,
    *,
    stored: Mapping[str, Stored] | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> Path:
    """Write the network into the folder, created if missing; files of an earlier save are replaced.

    Parameters in `stored` keep their stored dtype, the others are float32. The files `beside` are written together with
    the network or not at all. A network that `from_pretrained` would reject, or load as another one, raises before
    anything is written; a head replaced by hand for another number of classes is accepted.
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
    facts = _weight_facts(model)
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
        raise WeightsError.expected("folder", "one with space for the network", error, path=folder) from error
    return folder


class WeightsEntry(msgspec.Struct, frozen=True):
    sha256: str
    precision: str | None = None  # where weights are stored smaller than they are computed with


class ConfigFile(msgspec.Struct, frozen=True):
    """`config.json`."""

    format: Literal["ripe-mambaspike"]
    version: Literal[1, 2]
    architecture: str
    config: dict[str, Any]
    dtype: str
    parameters: int
    weights: WeightsEntry
    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""


def from_pretrained(folder: str | Path, *, form: Form | None = None) -> Model:
    """A saved network, in evaluation mode.

    Args:
        folder: the folder of a saved network or of a run, whose best network is taken, or the name of a shipped network
            (`list_pretrained`), or, as text where nothing of it exists here, the id "user/name" of a network on the
            Hugging Face Hub (extra `hub`)
        form: "training", "deployed" or "dual-kernel"; a network of another form raises
    """
    if is_hub_id(folder):
        model = load_from_hub(str(folder))
        _check_form(model.config, form, folder)
        return model
    folder = _as_path(folder)
    if not (_is_folder(folder) and any(os.path.lexists(folder / name) for name in (CONFIG_FILE, WEIGHTS_FILE))):
        folder = find_checkpoint(folder)
    origin = folder / CONFIG_FILE
    document = read_json(origin, ConfigFile, error=WeightsError, hint="a file written by save_pretrained is needed")
    config = _read_config(document, origin)
    _check_form(config, form, folder)
    model = meta_model(config, name=document.name)
    path = folder / WEIGHTS_FILE
    data = _read_weights(folder, document.weights.sha256, _max_weight_bytes(model, document.dtype))
    if data is None:
        raise WeightsError(
            f"{path}: expected the file that {CONFIG_FILE} was saved with, got another checksum: it was damaged, "
            "truncated or replaced",
            field="weights.sha256",
            path=path,
        )
    tensors = _unpack(data, path)
    if document.version == OLD_VERSION:
        tensors = rename_tensors(tensors)
    if document.weights.precision is not None:
        tensors = from_file(tensors, document.weights.precision, str(path))
    load_weights(model, tensors, str(path))
    for key, value in _weight_facts(model).items():
        if (got := getattr(document, key)) != value:
            raise WeightsError.expected(key, repr(value), repr(got), path=origin)
    model.labels = _read_labels(folder, config)
    return model.eval()


def weights_checksum(folder: Path) -> str:
    """The SHA-256 of a saved network's weights, which `from_pretrained` checks."""
    return read_json(folder / CONFIG_FILE, ConfigFile, error=WeightsError).weights.sha256


def _check_form(config: ModelConfig, form: Form | None, origin: str | Path) -> None:
    if form is not None and form not in get_args(Form):
        raise ConfigError.expected("form", f"one of {', '.join(get_args(Form))}", form)
    if form is not None and form != config.form:
        raise WeightsError.expected("form", repr(form), config.form, path=origin)


def _read_config(document: ConfigFile, origin: Path) -> ModelConfig:
    """The typed config, from current or earlier field names."""
    if document.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise WeightsError.expected("architecture", f"one of {known}", document.architecture, path=origin)
    kind, fields = ARCHITECTURES[document.architecture].config, document.config
    if document.version == OLD_VERSION:
        renamed = CONFIG_FIELDS.get(document.architecture, {})
        fields = {renamed.get(name, name): value for name, value in fields.items()}
    fields = with_added_fields(document.architecture, fields)
    if missing := [name for name in kind.field_names() if name not in fields]:
        raise WeightsError.expected(f"config.{missing[0]}", "a value", "nothing", path=origin)
    try:
        config = kind.from_dict(fields, origin.name)
        config.check_size()
    except ConfigError as error:
        raise error.in_file(origin) from error
    return config


def load_weights(model: Model, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Load tensors into a network of the same form; raises for missing, extra, misshapen or non-finite ones."""
    check_weights(model, tensors, origin)
    model.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)


def check_weights(model: Model, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Raise unless these are exactly the tensors of this network, of one dtype, and finite."""
    own = model.state_dict()
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        wanted, got = f"the tensors of {_describe(model)}", _differences(missing, extra)
        raise WeightsError.expected((missing or extra)[0], wanted, got, path=origin)
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            wanted = f"shape {tuple(tensor.shape)} for {_describe(model)}"
            raise WeightsError.expected(name, wanted, f"{tuple(tensors[name].shape)}", path=origin)
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    if len(dtypes) > 1 or not all(tensor.is_floating_point() for tensor in tensors.values()):
        got = ", ".join(sorted(dtypes))
        raise WeightsError.expected("weights", "tensors of one floating-point precision", got, path=origin)
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            bad = float(tensor[~tensor.isfinite()].flatten()[0])
            raise WeightsError.expected(name, "finite numbers", str(bad), path=origin)
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise WeightsError.expected(name, "variances of at least 0", f"{float(tensor.min()):.3g}", path=origin)


def _check_loads(model: Model, tensors: Mapping[str, Tensor], precision: str | None, folder: Path) -> None:
    """Raise unless the config and these tensors rebuild this network."""
    built = meta_model(model.config, name=model.name)
    origin = str(folder / WEIGHTS_FILE)
    check_weights(built, tensors if precision is None else from_file(tensors, precision, origin), origin)
    if (found := difference_from_config(model, built)) is not None:
        raise WeightsError(
            f"{folder}: expected the modules that the config builds, got a network where {found}; "
            "its state_dict can be saved by torch.save",
            field=found.name,
            path=folder,
        )


def _max_weight_bytes(model: Model, dtype: Any) -> int:
    """The largest size of this network's weights file, in the dtype that its config names."""
    width = getattr(torch, dtype).itemsize if dtype in PRECISIONS else MAX_ITEM_BYTES
    tensors = model.state_dict().values()
    return sum(tensor.numel() for tensor in tensors) * width + (len(tensors) + 1) * HEADER_BYTES


def _read_labels(folder: Path, config: ModelConfig) -> Labels | None:
    if not os.path.lexists(folder / LABELS_FILE):
        return None
    labels = read_labels(folder)
    if len(labels.classes) != config.num_classes:
        wanted = f"{config.num_classes} names for the network"
        raise WeightsError.expected("classes", wanted, len(labels.classes), path=folder / LABELS_FILE)
    return labels


def _weight_facts(model: Model) -> dict[str, Any]:
    """Facts about the weights in `config.json`, for information only."""
    return {"dtype": str(model.dtype).removeprefix("torch."), "parameters": model.parameter_count()}


def _describe(model: Model) -> str:
    return f"the {model.config.form} form of '{model.name}'"


def _differences(missing: list[str], extra: list[str]) -> str:
    """The kind of file, judged by its tensor names, and how many tensors are missing and extra."""
    marks = {
        "encoder.": "a Mamba-Spike",
        ".branches.": "a training",
        ".weight_now": "a dual-kernel",
        "first_conv.weight": "a deployed",
    }
    kind = next((kind for mark, kind in marks.items() if any(mark in name for name in extra)), "a")
    counts = [(f"without {len(missing)} of them", missing), (f"with {len(extra)} others", extra)]
    return f"{kind} file " + " and ".join(f"{count} (such as {names[0]})" for count, names in counts if names)


def _unpack(data: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(data)
    except (SafetensorError, ValueError, KeyError, OverflowError) as error:
        raise WeightsError(f"{path}: expected a safetensors file, got {error}", path=path) from error


def _read(path: Path, most: int) -> bytes:
    try:
        return read_regular(path, most)
    except OSError as error:
        raise WeightsError(f"{path}: expected a file of a saved network, got {error.strerror}", path=path) from error


def _read_weights(folder: Path, sha256: str, most: int) -> bytes | None:
    """The file with that checksum: in place, or the backup of a later save that was killed between its two renames."""
    for path in (folder / WEIGHTS_FILE, *earlier_versions(folder / WEIGHTS_FILE)):
        data = _read(path, most)
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
    return None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # not a valid path on this system
        return False


def _as_path(folder: Any) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise WeightsError.expected("folder", "a path", f"a {type(folder).__name__}")
    return Path(folder)
