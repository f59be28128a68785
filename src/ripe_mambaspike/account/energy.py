"""Synaptic operations and their energy, from spikes that were measured.

A convolution whose operand is binary can be executed by additions alone, one for every spike and every weight that
reads it (the dual-kernel form reads it twice: now and one step later). Counts are exact at the borders: a spike at the
edge of the map meets fewer kernel positions, and so do the multiply-adds it is compared with. Neurons, norms, pooling
and memory access are not counted.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.account.flops import count_flops
from ripe_mambaspike.models.mamba_spike import MambaSpike
from ripe_mambaspike.models.ripe import RipeMambaSpike

MAC_PICOJOULES = 4.6  # one multiply-add at 45 nm (Horowitz 2014)
AC_PICOJOULES = 0.9  # one addition


@dataclass(frozen=True)
class ConvActivity:
    """One backbone convolution over a clip, counts for one sample."""

    layer: str
    binary: bool  # whether its operand is spikes
    rate: float  # mean of the operand: spikes a position and step, or events for the first layer
    macs: int  # executed densely, after the temporal filter
    accumulates: float | None  # executed as two kernels over spikes; None where the operand is not binary

    @property
    def dense_picojoules(self) -> float:
        return self.macs * MAC_PICOJOULES

    @property
    def event_picojoules(self) -> float:
        """In the dual-kernel form; a layer that is not eligible stays dense."""
        return self.dense_picojoules if self.accumulates is None else self.accumulates * AC_PICOJOULES


def fan_out(height: int, width: int, stride: int) -> Tensor:
    """How many (output, tap) pairs of a padded 3×3 kernel read each input position: [H, W]."""

    def along(size: int) -> Tensor:
        outputs = torch.arange(-(-size // stride))[:, None] * stride
        read = (outputs + torch.arange(-1, 2)).flatten()
        return torch.bincount(read[(read >= 0) & (read < size)], minlength=size)

    return torch.outer(along(height), along(width))


@torch.no_grad()
def measure(model: RipeMambaSpike, x: Tensor) -> list[ConvActivity]:
    """Run the network on binned events [B, T, 2, H, W] and count what each backbone convolution did."""
    stages = model.front_end(x).stages
    layers = []
    operand, in_channels = x, 2
    for level, (stage, channels) in enumerate(zip(stages, model.config.stage_channels, strict=True), 1):
        first = _activity(f"stage{level}.first_conv", operand, in_channels, channels, 2, binary=level > 1)
        second = _activity(f"stage{level}.second_conv", stage.inner_spikes, channels, channels, 1, binary=True)
        layers += [first, second]
        operand, in_channels = stage.spikes, channels
    return layers


def energy_report(model: RipeMambaSpike | MambaSpike, x: Tensor, measured_on: str) -> dict[str, Any]:
    """Everything `ripe account` says about energy, for one sample; x sets steps and resolution."""
    config = model.config.replace(resolution=tuple(x.shape[3:]), steps=x.shape[1])
    flops = count_flops(config)
    assumptions = {
        "mac_picojoules": MAC_PICOJOULES,
        "ac_picojoules": AC_PICOJOULES,
        "technology": "45 nm",
        "left_out": "neurons, norms, pooling, memory access",
        "measured_on": measured_on,
    }
    if not isinstance(model, RipeMambaSpike):
        return {"assumptions": assumptions, "dense_microjoules": _micro(flops.total / 2 * MAC_PICOJOULES)}
    layers = measure(model, x)
    rest = (flops.total - flops.by_part["backbone"]) / 2  # multiply-adds that stay dense in any form
    dense = sum(layer.dense_picojoules for layer in layers)
    event = sum(layer.event_picojoules for layer in layers)
    backbone_macs = sum(layer.macs for layer in layers)
    eligible = sum(layer.macs for layer in layers if layer.binary)
    return {
        "assumptions": assumptions,
        "layers": [asdict(layer) for layer in layers],
        "synaptic_operations": sum(layer.accumulates or 0 for layer in layers),
        "eligible_share_of_backbone": eligible / backbone_macs,
        "eligible_share_of_network": eligible / (backbone_macs + rest),
        "backbone_dense_microjoules": _micro(dense),
        "backbone_dual_kernel_microjoules": _micro(event),
        "network_dense_microjoules": _micro(dense + rest * MAC_PICOJOULES),
        "network_dual_kernel_microjoules": _micro(event + rest * MAC_PICOJOULES),
    }


def _activity(name: str, operand: Tensor, in_channels: int, channels: int, stride: int, binary: bool) -> ConvActivity:
    samples, steps, _, height, width = operand.shape
    fan = fan_out(height, width, stride).to(operand.device)
    macs = int(fan.sum()) * in_channels * channels * steps
    accumulates = None
    if binary:
        reached = (operand.double().sum(2) * fan).sum((0, 2, 3)) * channels / samples  # a step
        accumulates = float(reached.sum() + reached[:-1].sum())
    return ConvActivity(name, binary, float(operand.double().mean()), macs, accumulates)


def _micro(picojoules: float) -> float:
    return picojoules * 1e-6
