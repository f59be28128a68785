"""The cost of a registered network, of a saved one, or of a saved one on recordings."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from ripe_mambaspike.account.document import account_clip
from ripe_mambaspike.account.measured import account_recordings, accumulator_of, measure_clip
from ripe_mambaspike.account.sweeps import Sweep, SweepName, sweep
from ripe_mambaspike.errors import ConfigError, InputError, RipeError
from ripe_mambaspike.events.region import Crop, Size
from ripe_mambaspike.inference.classifier import load_network, make_clip, read_recording
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.input_checks import check_input
from ripe_mambaspike.models.labels import find_checkpoint
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.models.registry import create_model, list_models, model_config
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.shipped import shipped_folder
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.calibrate import has_running_statistics, recalibrate

SEED = 0  # of the weights of a registered network
CALIBRATION_SIDE = 34  # small: statistics depend little on the size of the clip
SWEPT_FIELDS = {
    "in_size": {"in_size"},
    "time_steps": {"time_steps"},
    "width": {"stage_channels", "embed_dims"},
    "num_tokens": {"num_tokens"},
}


def account(
    model: str | Path,
    *,
    in_size: int | None = None,
    time_steps: int | None = None,
    fields: Mapping[str, Any] | None = None,
    clip: Path | None = None,
    recordings: Sequence[Path] | None = None,
    sensor_size: Size | None = None,
    crop: Crop | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Count a network's parameters, operations, bytes and energy; returns a JSON document.

    `model` is a registered name, with config `fields`, or the folder of a run or of a saved network. Energy depends on
    spikes: they are measured on `recordings`, on the binned events in the file `clip`, or on a synthetic clip of
    `in_size` and `time_steps`. On recordings the additions are made and counted by the accumulate-only runtime.
    """
    if recordings is not None:
        if clip is not None or fields:
            given = "--input" if clip is not None else "--set"
            raise ConfigError(f"{given}: expected none with --recordings, got one", field=given)
        if not is_saved(model):
            raise ConfigError(f"--recordings: expected a saved network, got {str(model)!r}", field="--recordings")
        if not recordings:
            raise ConfigError("--recordings: expected at least one file, got none", field="--recordings")
        return _account_recordings(model, recordings, time_steps, in_size, sensor_size, crop, progress)
    for option, value in (("--sensor-size", sensor_size), ("--crop", crop)):
        if value is not None:
            raise ConfigError(f"{option}: expected --recordings with it, got none", field=option)
    return _account_clip(str(model), _merged(fields, in_size, time_steps), clip)


def account_sweep(
    model: str,
    name: SweepName,
    *,
    in_size: int | None = None,
    time_steps: int | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Sweep:
    """One of the paper's cost tables compared with ours: over in_size, time_steps, width or num_tokens."""
    if name not in SWEPT_FIELDS:
        raise ConfigError.expected("name", f"one of {', '.join(SWEPT_FIELDS)}", repr(name))
    merged = _merged(fields, in_size, time_steps)
    if swept := sorted(SWEPT_FIELDS[name] & merged.keys()):
        raise ConfigError(f"{swept[0]}: expected none, since the sweep over {name} sets it, got one", field=swept[0])
    if is_saved(model):
        raise ConfigError(f"--sweep: expected a registered network, got the saved one {model}", field="--sweep")
    return sweep(name, model_config(model, **merged))


def is_saved(model: str | Path) -> bool:
    """Whether this names a folder or a shipped network rather than a registered one."""
    if str(model) in list_models() or not str(model):
        return False
    if shipped_folder(model) is not None:
        return True
    try:
        return "/" in str(model) or Path(model).exists()
    except (OSError, ValueError):  # not a valid path
        return False


def _merged(fields: Mapping[str, Any] | None, in_size: int | None, time_steps: int | None) -> dict[str, Any]:
    merged = dict(fields or {})
    for name, value in (("in_size", in_size), ("time_steps", time_steps)):
        if value is not None and name in merged:
            raise ConfigError(f"{name}: expected it once, got --{name.replace('_', '-')} and --set {name}", field=name)
        if value is not None:
            merged[name] = value
    return merged


def _account_clip(name: str, fields: dict[str, Any], path: Path | None) -> dict[str, Any]:
    saved = is_saved(name)
    size: dict[str, Any] = {name: fields.pop(name) for name in ("in_size", "time_steps") if saved and name in fields}
    model = _saved_model(name, fields) if saved else create_model(name, seed=SEED, **fields)
    if path is None:
        config = model.config.replace(**size)
        clip = synthetic_clip(config.time_steps, *config.in_size).to(model.dtype)
        measured_on = "a synthetic clip (a sweeping bar and noise), "
    else:
        clip = read_clip(path).to(model.dtype)
        given: dict[str, Any] = {**fields, **size}
        for field, actual in (("in_size", tuple(clip.shape[3:])), ("time_steps", clip.shape[1])):
            if field in given and getattr(model.config.replace(**size), field) != actual:
                raise InputError(f"--input: expected the {field} of {path}, {actual}, got {given[field]}", field=field)
        measured_on = f"{path.name}, "
    check_input(clip, model.config.max_time_steps, model.dtype)
    if not saved and isinstance(model, RipeMambaSpike) and model.config.form == "training":
        small = synthetic_clip(clip.shape[1], CALIBRATION_SIDE, CALIBRATION_SIDE, samples=2, seed=1)
        recalibrate(model, [small.to(model.dtype)], run=model.front_end)
    elif not saved and has_running_statistics(model):
        height, width = clip.shape[3:]
        recalibrate(model, [synthetic_clip(clip.shape[1], height, width, samples=2, seed=1).to(model.dtype)])
    return account_clip(model, clip, measured_on + (f"weights of {name}" if saved else "untrained weights (seed 0)"))


def _saved_model(name: str, fields: dict[str, Any]) -> Model:
    if fields:
        raise ConfigError(f"--set: expected none for the saved network {name}, got {', '.join(fields)}", field="--set")
    return from_pretrained(find_checkpoint(name))


def _account_recordings(
    model: str | Path,
    paths: Sequence[Path],
    time_steps: int | None,
    grid: int | None,
    sensor_size: Size | None,
    crop: Crop | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    classifier = load_network(model, time_steps=time_steps, grid=grid, sensor_size=sensor_size, crop=crop)
    runtime = accumulator_of(classifier.model)
    activities = []
    for index, path in enumerate(paths, 1):
        name = str(path).encode("utf-8", "replace").decode()
        progress(f"measuring {index} of {len(paths)}: {name} …")
        try:
            clip = make_clip(classifier, read_recording(classifier, path))
            activities.append(measure_clip(runtime, name, clip.unsqueeze(0)))
        except RipeError as error:
            if str(path) in str(error):
                raise
            raise InputError(f"{path}: {error}", field=error.field, path=path) from error
    count = f"{len(paths)} recording{'s' if len(paths) > 1 else ''}"
    return account_recordings(classifier.model, activities, f"{count}, weights of {model}")


def read_clip(path: Path) -> Tensor:
    """Binned events [B, T, 2, H, W] as float32, from a .npy or .npz file with one array [(B,) T, 2, H, W]."""

    def wrong(got: str) -> InputError:
        return InputError(f"{path}: expected a .npy or .npz file with one array [T, 2, H, W], got {got}", path=path)

    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            if len(loaded.files) != 1:
                raise wrong(f"{len(loaded.files)} arrays")
            loaded = loaded[loaded.files[0]]
    except OSError as error:
        raise wrong(error.strerror or "another file") from error
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise wrong("another file") from error
    if not isinstance(loaded, np.ndarray) or loaded.ndim not in (4, 5) or loaded.dtype.kind not in "fiub":
        raise wrong(f"{loaded.dtype} of shape {loaded.shape}" if isinstance(loaded, np.ndarray) else "no array")
    with np.errstate(over="ignore"):
        clip = torch.from_numpy(loaded.astype(np.float32))
    if not clip.isfinite().all() or clip.lt(0).any():
        raise wrong("values that are not event counts (negative or not finite)")
    return clip if clip.ndim == 5 else clip.unsqueeze(0)
