"""Which network a command is about: a registered name with fields set, or a folder with a saved one."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from ripe_mambaspike.errors import ConfigError, InputError

if TYPE_CHECKING:
    from torch import Tensor

    from ripe_mambaspike.models.base import Model

SEED = 0


def read_fields(pairs: Sequence[str]) -> dict[str, Any]:
    """`field=value` words, the value written as in YAML: `attention=grouped`, `neurons=[lif, lif, lif]`."""
    import yaml

    fields = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set was given '{pair}'; field=value is wanted")
        if name in fields:
            raise ConfigError(f"--set was given {name} twice; one value is wanted")
        try:
            fields[name] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"--set was given '{pair[:60]}'; its value cannot be read as YAML") from error
    return fields


def is_saved(model: str) -> bool:
    """Whether the word names a folder rather than a registered network."""
    from ripe_mambaspike.models.registry import list_models

    if model in list_models() or not model:
        return False
    try:
        return "/" in model or Path(model).exists()
    except OSError:  # a name the system cannot even look up
        return False


def select_model(model: str, fields: dict[str, Any]) -> "Model":
    """The saved network, or a fresh one with the weights of seed 0."""
    from ripe_mambaspike.models.pretrained import from_pretrained
    from ripe_mambaspike.models.registry import create_model

    if not is_saved(model):
        return create_model(model, seed=SEED, **fields)
    if fields:
        raise ConfigError(
            f"fields were set ({', '.join(fields)}) for the saved network {model}; only a name takes them"
        )
    return from_pretrained(model)


def read_clip(path: Path) -> "Tensor":
    """Binned events from a .npy or .npz file, (T, 2, H, W) or (B, T, 2, H, W), as float32."""
    import numpy as np
    import torch

    wanted = "a .npy or .npz file with one array (steps, 2, height, width) is wanted"
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            if len(loaded.files) != 1:
                raise InputError(f"{path} holds {len(loaded.files)} arrays; {wanted}")
            loaded = loaded[loaded.files[0]]
        if not isinstance(loaded, np.ndarray):
            raise InputError(f"{path} holds no array; {wanted}")
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or 'not an array file'}); {wanted}") from error
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is not an array file; {wanted}") from error
    if loaded.ndim not in (4, 5) or loaded.dtype.kind not in "fiub":
        raise InputError(f"{path} holds {loaded.dtype} of shape {loaded.shape}; {wanted}")
    with np.errstate(over="ignore"):
        clip = torch.from_numpy(loaded.astype(np.float32))
    if not clip.isfinite().all() or clip.lt(0).any():
        raise InputError(f"{path} holds values that are no event counts (negative or not finite); {wanted}")
    return clip if clip.ndim == 5 else clip.unsqueeze(0)
