"""A copy of a network that exporters can trace: neuron constants are precomputed, stored weights stay small."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ripe_mambaspike.deploy.forms import require_form
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Model, require_unmodified
from ripe_mambaspike.models.config_check import sync_num_classes
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.stored import Stored
from ripe_mambaspike.nn.neurons import ConstantsNeuron
from ripe_mambaspike.nn.repconv import FusedConv
from ripe_mambaspike.ops.graph_nodes import keeps_node
from ripe_mambaspike.ops.integer_conv import integer_conv_node, is_on_filter_grid
from ripe_mambaspike.ops.neurons import NeuronConstants

LAYERS = {"first_neuron": "neurons", "second_neuron": "neurons", "attention": "attention"}  # and their config fields


class FrozenNeuron(ConstantsNeuron):
    """A neuron whose per-channel constants are precomputed, so that every runtime uses the same ones."""

    decay: Tensor
    rotation: Tensor | None
    gain: Tensor
    threshold: Tensor

    def __init__(self, neuron: ConstantsNeuron, dtype: torch.dtype) -> None:
        super().__init__()
        self.reset_factor = neuron.reset_factor
        for name, value in neuron.constants(torch.device("cpu"))._asdict().items():
            self.register_buffer(name, None if value is None else value.detach().to(dtype))

    def constants(self, device: torch.device) -> NeuronConstants:
        return NeuronConstants(self.decay, self.rotation, self.gain, self.threshold)


class _Expanded(nn.Module):
    """A weight stored as int8 or float16 and converted to float32 wherever it is read."""

    scale: Tensor | None

    def __init__(self, stored: Stored, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("scale", None if stored.scale is None else stored.scale.detach())

    def forward(self, values: Tensor) -> Tensor:
        wide = values.float()
        return (wide if self.scale is None else wide * self.scale).to(self.dtype)


class IntegerConv(FusedConv):
    """A convolution that reads spikes, with an int8 weight and a filter on its grid: integers suffice to compute it."""

    parametrizations: nn.ModuleDict

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not keeps_node("integer_conv"):
            return super().convolve(x, weight, bias)
        stored: Any = self.parametrizations["weight"]
        out = integer_conv_node(x.flatten(0, 1), stored.original, stored[0].scale, bias, self.stride)
        return out.unflatten(0, x.shape[:2])


def prepare_for_export(model: Any, stored: Mapping[str, Stored] | None) -> RipeMambaSpike:
    """A copy in eval mode, without gradients, in float32 (or float64), with its stored weights."""
    model = require_form(model, "export", "deployed")
    _require_exportable(model)
    sync_num_classes(model)
    prepared = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    if prepared.dtype != torch.float64:
        prepared = prepared.float()
    shapes = {name: parameter.shape for name, parameter in prepared.named_parameters()}
    for name, one in (stored or {}).items():
        if name not in shapes or one.values.shape != shapes[name]:
            got = f"{name} of shape {tuple(one.values.shape)}"
            raise ConfigError.expected("stored", f"weights of '{model.name}'", got)
        part, _, last = name.rpartition(".")
        module = prepared.get_submodule(part)
        setattr(module, last, nn.Parameter(one.values.detach().clone(), requires_grad=False))
        parametrize.register_parametrization(module, last, _Expanded(one, model.dtype), unsafe=True)
    _mark_integer_convs(prepared, stored or {})
    for stage in prepared.stages:
        for name in ("first_neuron", "second_neuron"):
            if isinstance(neuron := getattr(stage, name), ConstantsNeuron):
                setattr(stage, name, FrozenNeuron(neuron, prepared.dtype))
    return prepared


def _mark_integer_convs(model: RipeMambaSpike, stored: Mapping[str, Stored]) -> None:
    for level, stage in enumerate(model.stages):
        for name in ("first_conv", "second_conv"):
            conv, weight = getattr(stage, name), stored.get(f"stages.{level}.{name}.weight")
            spiking = level > 0 or name == "second_conv"
            if not spiking or weight is None or weight.scale is None or not isinstance(conv, FusedConv):
                continue
            if is_on_filter_grid(conv.coefficient):
                conv.__class__ = type(IntegerConv.__name__, (IntegerConv, conv.__class__), {})


def prepare_whole(model: Model) -> Model:
    """A copy of any network in eval mode, without gradients, in float32 (or float64), to be traced as it is."""
    require_unmodified(model, "export")
    sync_num_classes(model)
    prepared = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    return prepared if prepared.dtype == torch.float64 else prepared.float()


def _require_exportable(model: RipeMambaSpike) -> None:
    """Raise for layers without `exportable = True`."""
    for level, stage in enumerate(model.stages):
        for name, field in LAYERS.items():
            layer = getattr(stage, name)
            if not getattr(layer, "exportable", False):
                got = f"{type(layer).__name__} in stages.{level}.{name}"
                raise ConfigError.expected(field, "layers with exportable = True", got)
