"""Exact conversion of a training network to its deployed form.

Every RepConv becomes one 3×3 kernel, every norm with running statistics a fixed scale and shift, and the bridge's
norms a scale of its kernels. The arithmetic is done in float64 and stored in the model's precision, and the result is
compared with the original before it is returned.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from ripe_mambaspike.deploy.forms import require_form
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config_check import difference_from_config, sync_num_classes
from ripe_mambaspike.models.form_agreement import FormAgreement, verify, verify_rounding
from ripe_mambaspike.models.registry import meta_model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.bridge import FoldedProjection, RateProjection
from ripe_mambaspike.nn.norm import TimeAffine, TimeBatchNorm
from ripe_mambaspike.nn.repconv import DualKernelConv, FusedConv, RepConv


def fuse(model: Model, *, quiet: bool = False) -> RipeMambaSpike:
    """The deployed form of a training network, verified in float64.

    Args:
        model: a network in its training form; it is not changed
        quiet: do not write the largest error to standard error
    """
    return fuse_with_report(model, quiet=quiet)[0]


def dual_kernel(model: Model, *, quiet: bool = False) -> RipeMambaSpike:
    """The accumulate-only form of a training or deployed network, verified in float64.

    Args:
        model: a network in its training or deployed form; it is not changed
        quiet: do not write the largest error to standard error
    """
    return dual_kernel_with_report(model, quiet=quiet)[0]


def fuse_with_report(model: Model, *, quiet: bool = False) -> tuple[RipeMambaSpike, FormAgreement]:
    _check_model(model, "fuse", "training")
    return _convert(model, "deployed", quiet)


def dual_kernel_with_report(model: Model, *, quiet: bool = False) -> tuple[RipeMambaSpike, FormAgreement]:
    _check_model(model, "dual_kernel", "training", "deployed")
    if model.config.form == "training":
        model = fuse(model, quiet=quiet)
    return _convert(model, "dual-kernel", quiet)


def _check_model(model: Any, what: str, *forms: str) -> None:
    model = require_form(model, what, *forms)
    sync_num_classes(model)
    if (found := difference_from_config(model, meta_model(model.config))) is not None:
        raise ConfigError.expected(found.name, f"the layer of the config for {what}", str(found))
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in model.state_dict().values()}
    if len(kinds) > 1:
        raise ConfigError.expected("dtype", f"one precision for {what}", " and ".join(sorted(kinds)))


def _convert(model: Model, form: str, quiet: bool) -> tuple[RipeMambaSpike, FormAgreement]:
    """The converted network and its agreement: in float64, then in the returned dtype, layer by layer."""
    assert isinstance(model, RipeMambaSpike)
    agreement = verify(model, _in_form(model, form, torch.float64))
    converted = _in_form(model, form, model.dtype)
    verify_rounding(model, converted)
    if not quiet:
        print(f"{model.name}: {model.config.form} → {form}, {agreement}", file=sys.stderr)
    return converted, agreement


def _in_form(model: RipeMambaSpike, form: str, dtype: torch.dtype) -> RipeMambaSpike:
    converted = meta_model(model.config, form, model.name)
    assert isinstance(converted, RipeMambaSpike)
    tensors = {name: tensor.to(dtype, copy=True) for name, tensor in _in_float64(converted, model).items()}
    converted.load_state_dict(tensors, assign=True)
    converted.labels = model.labels
    return converted.eval()


@torch.no_grad()
def _in_float64(converted: RipeMambaSpike, model: RipeMambaSpike) -> dict[str, Tensor]:
    """Every tensor of the converted network, computed in float64 from the original's."""
    source = dict(model.named_modules())
    tensors: dict[str, Tensor] = {}
    for name, module in converted.named_modules():
        if (replaced := _replace(source[name], module) if name in source else None) is not None:
            tensors.update({f"{name}.{key}": value for key, value in replaced.items()})
    same = {name: tensor.detach().double() for name, tensor in model.state_dict().items()}
    return {name: tensors.get(name, same.get(name)) for name in converted.state_dict()}  # type: ignore[misc]


def _replace(old: nn.Module, new: nn.Module) -> dict[str, Tensor] | None:
    """Tensors of a module that changes its form; None for one that keeps it."""
    if isinstance(old, RepConv) and isinstance(new, FusedConv):
        weight, bias = old.kernel_and_bias()
        return {"weight": weight, "bias": bias}
    if isinstance(old, FusedConv) and isinstance(new, DualKernelConv):
        assert old.coefficient is not None
        weight = old.weight.double()
        coefficient = old.coefficient.double()[None, :, None, None]
        return {"weight_now": weight * (1 + coefficient), "weight_before": weight * coefficient}
    if isinstance(old, TimeBatchNorm) and isinstance(new, TimeAffine):
        return dict(zip(("scale", "shift"), old.scale_and_shift(), strict=True))
    if isinstance(old, RateProjection) and isinstance(new, FoldedProjection):
        scale, shift = old.norm.scale_and_shift()
        return {"weight": old.conv.weight.double(), "scale": scale, "shift": shift}
    return None
