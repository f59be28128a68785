"""Networks saved by earlier versions: what their fields and tensors are called now, and the fields added since."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

_COMMON = {"classes": "num_classes", "steps": "time_steps", "resolution": "in_size"}
CONFIG_FIELDS: dict[str, dict[str, str]] = {
    "ripe-mambaspike": {
        **_COMMON,
        "tokens": "num_tokens",
        "hierarchy_widths": "embed_dims",
        "drop_path": "drop_path_rate",
        "head_width": "head_hidden_size",
    },
    "mamba-spike": {
        **_COMMON,
        "width": "embed_dim",
        "blocks": "depth",
        "pooled": "pool_size",
        "window": "rate_window",
    },
}

# What networks were before a field existed; the config of an earlier file is without it.
ADDED_FIELDS: dict[str, dict[str, Any]] = {
    "ripe-mambaspike": {
        "csilif_reset": 0.5,
        "detach_reset": False,
        "attention_feature_map": "elu",
        "attention_epsilon": 1e-5,
        "bridge_dim": None,
        "d_state": 16,
        "d_conv": 4,
        "expand": 2,
    },
}


def with_added_fields(architecture: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a saved config, those that were added since included."""
    return {**ADDED_FIELDS.get(architecture, {}), **fields}


_MODULES = ((".ahead.", ".forward_mamba."), (".behind.", ".backward_mamba."))
_MAMBA = {
    "in_proj": "in_proj.weight",
    "conv": "conv1d.weight",
    "conv_bias": "conv1d.bias",
    "x_proj": "x_proj.weight",
    "dt_proj": "dt_proj.weight",
    "dt_bias": "dt_proj.bias",
    "a_log": "A_log",
    "skip": "D",
    "out_proj": "out_proj.weight",
}
_MAMBA_TENSOR = re.compile(rf"(.*_mamba|blocks\.\d+\.mamba)\.({'|'.join(_MAMBA)})(\.scale)?")


def rename_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of an earlier file under today's names; the convolution [E, K] of Mamba becomes [E, 1, K]."""
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in _MODULES:
            name = name.replace(old, new)
        if found := _MAMBA_TENSOR.fullmatch(name):
            module, last, scale = found.groups()
            name = f"{module}.{_MAMBA[last]}{scale or ''}"
            if last == "conv":
                tensor = tensor.unsqueeze(1)
        renamed[name] = tensor
    return renamed
