"""Parameters stored in fewer bytes: int8 with a scale per output channel, or float16.

Every runtime computes with the result of `restore`.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ripe_mambaspike.errors import WeightsError

MAX_INT8 = 127  # symmetric: −128 is never used
Precision = Literal["float16", "int8"]
SCALE = ".scale"  # suffix of a parameter's name for its scales in a file


class Stored(NamedTuple):
    values: Tensor  # int8 or float16, the parameter's shape
    scale: Tensor | None  # float32, per output channel [C, 1, …]; None for float16


def restore(stored: Stored, dtype: torch.dtype = torch.float32) -> Tensor:
    """The parameter in float32: an exact conversion and one float32 product, the same on every machine."""
    values = stored.values.float()
    return (values if stored.scale is None else values * stored.scale).to(dtype)


def scale_shape(shape: torch.Size | tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a parameter's scales: one per output channel, [C, 1, …]."""
    return (shape[0], *(1,) * (len(shape) - 1))


def precision_of(stored: Mapping[str, Stored]) -> Precision:
    """The dtype name of the stored matrices: int8 if any of them is."""
    return "int8" if any(one.scale is not None for one in stored.values()) else "float16"


def check_stored(model: nn.Module, stored: Mapping[str, Stored]) -> None:
    """Raise for stored weights that do not belong to this network."""
    own = dict(model.named_parameters())
    for name, (values, scale) in stored.items():
        if name not in own:
            raise WeightsError.expected(name, "a parameter of the network to store", "an unknown name")
        _check(name, values, scale, own[name].shape, None)


def to_file(model: nn.Module, stored: Mapping[str, Stored]) -> dict[str, Tensor]:
    """Tensors by their names in a file; parameters that are not stored are float32."""
    check_stored(model, stored)
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name not in stored:
            tensors[name] = tensor.detach().cpu().float().contiguous()
            continue
        values, scale = stored[name]
        tensors[name] = values.cpu().contiguous()
        if scale is not None:
            tensors[name + SCALE] = scale.cpu().contiguous()
    return tensors


def from_file(tensors: Mapping[str, Tensor], precision: Any, origin: str) -> dict[str, Tensor]:
    """The float32 tensors of a network: the inverse of `to_file`. The loader checks the names."""
    if precision not in get_args(Precision):
        raise WeightsError.expected(
            "weights.precision", f"one of {', '.join(get_args(Precision))}", precision, path=origin
        )
    restored: dict[str, Tensor] = {}
    scales = {name + SCALE for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    for name, tensor in tensors.items():
        if name in scales:
            continue
        if tensor.dtype == torch.float32:
            restored[name] = tensor
            continue
        scale = tensors.get(name + SCALE) if tensor.dtype == torch.int8 else None
        _check(name, tensor, scale, tensor.shape, origin)
        restored[name] = restore(Stored(tensor, scale))
    held = "int8" if scales else "float16" if any(t.dtype == torch.float16 for t in tensors.values()) else "float32"
    if held != precision:
        raise WeightsError.expected("weights.precision", f"{precision} weights, as config.json says", held, path=origin)
    return restored


def _check(name: str, values: Tensor, scale: Tensor | None, shape: torch.Size, path: str | None) -> None:
    kind = _dtype_name(values)
    wanted = scale_shape(shape)
    if values.dtype not in (torch.int8, torch.float16):
        raise WeightsError.expected(name, "int8, float16 or float32", kind, path=path)
    if values.shape != shape:
        raise WeightsError.expected(name, f"shape {tuple(shape)}", tuple(values.shape), path=path)
    if values.dtype == torch.int8 and (scale is None or values.ndim < 2):
        raise WeightsError.expected(name, f"int8 rows with {name}{SCALE}", "rows or scales missing", path=path)
    if values.dtype != torch.int8 and scale is not None:
        raise WeightsError.expected(name, "float16 without scales", "scales", path=path)
    if scale is not None and (scale.dtype != torch.float32 or scale.shape != wanted):
        got = f"{_dtype_name(scale)} {tuple(scale.shape)}"
        raise WeightsError.expected(name + SCALE, f"float32 {wanted}", got, path=path)
    if scale is not None and not bool((scale.isfinite() & (scale > 0)).all()):
        raise WeightsError.expected(name + SCALE, "positive numbers", "zero, negative or non-finite ones", path=path)
    if not bool(values.isfinite().all()):
        raise WeightsError.expected(name, "finite numbers", "NaN or Inf", path=path)


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
