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
    """One spiking layer's convolution over a clip, counts for one sample."""

    layer: str
    binary: bool  # whether its operand is spikes
    rate: float  # mean of the operand: spikes a position and step, or events for the first layer
    macs: int  # executed densely
    accumulates: float | None  # executed by additions; None where the operand is not binary

    @property
    def dense_picojoules(self) -> float:
        return self.macs * MAC_PICOJOULES

    @property
    def event_picojoules(self) -> float:
        """By additions; a layer that is not eligible stays dense."""
        return self.dense_picojoules if self.accumulates is None else self.accumulates * AC_PICOJOULES


def fan_out(height: int, width: int, stride: int, side: int = 3) -> Tensor:
    """How many (output, tap) pairs of a padded square kernel read each input position: [H, W]."""

    def along(size: int) -> Tensor:
        outputs = torch.arange(-(-size // stride))[:, None] * stride
        read = (outputs + torch.arange(side) - side // 2).flatten()
        return torch.bincount(read[(read >= 0) & (read < size)], minlength=size)

    return torch.outer(along(height), along(width))


@torch.no_grad()
def measure(model: RipeMambaSpike | MambaSpike, x: Tensor) -> list[ConvActivity]:
    """Run the network on binned events [B, T, 2, H, W] and count what the convolutions of its spiking part did."""
    if isinstance(model, MambaSpike):
        return _measure_baseline(model, x)
    layers = []
    operand = x
    reads = 2 if model.config.tdm else 1  # now, and one step later through the filter
    for level, (stage, channels) in enumerate(
        zip(model.front_end(x).stages, model.config.stage_channels, strict=True), 1
    ):
        binary = level > 1
        layers += [
            _activity(f"stage{level}.first_conv", operand, channels, stride=2, binary=binary, reads=reads),
            _activity(f"stage{level}.second_conv", stage.inner_spikes, channels, reads=reads),
        ]
        operand = stage.spikes
    return layers


def energy_report(model: RipeMambaSpike | MambaSpike, x: Tensor, measured_on: str) -> dict[str, Any]:
    """Everything `ripe account` says about energy, for one sample; x sets steps and resolution."""
    flops = count_flops(model.config.replace(resolution=tuple(x.shape[3:]), steps=x.shape[1]))
    spiking = "encoder" if isinstance(model, MambaSpike) else "backbone"
    rest = (flops.total - flops.by_part[spiking]) / 2  # multiply-adds that stay dense in any form
    layers = measure(model, x)
    dense = sum(layer.dense_picojoules for layer in layers)
    event = sum(layer.event_picojoules for layer in layers)
    macs = sum(layer.macs for layer in layers)
    eligible = sum(layer.macs for layer in layers if layer.binary)
    return {
        "assumptions": {
            "mac_picojoules": MAC_PICOJOULES,
            "ac_picojoules": AC_PICOJOULES,
            "technology": "45 nm",
            "left_out": "neurons, norms, pooling, memory access",
            "measured_on": measured_on,
        },
        "layers": [asdict(layer) for layer in layers],
        "synaptic_operations": sum(layer.accumulates or 0 for layer in layers),
        "eligible_share_of_backbone": eligible / macs,
        "eligible_share_of_network": eligible / (macs + rest),
        "backbone_dense_microjoules": _micro(dense),
        "backbone_event_microjoules": _micro(event),
        "network_dense_microjoules": _micro(dense + rest * MAC_PICOJOULES),
        "network_event_microjoules": _micro(event + rest * MAC_PICOJOULES),
    }


def _measure_baseline(model: MambaSpike, x: Tensor) -> list[ConvActivity]:
    layers = []
    for index, layer in enumerate(model.encoder, 1):
        spikes = layer(x)
        channels = spikes.shape[2]
        layers.append(_activity(f"encoder{index}.conv", x, channels, binary=index > 1, reads=1))
        before = torch.cat((torch.zeros_like(spikes[:, :1]), spikes[:, :-1]), 1)
        layers.append(_activity(f"encoder{index}.recurrent", before, channels, side=1, reads=1))
        x = spikes
    return layers


def _activity(
    name: str, operand: Tensor, channels: int, *, stride: int = 1, side: int = 3, binary: bool = True, reads: int
) -> ConvActivity:
    samples, steps, in_channels, height, width = operand.shape
    fan = fan_out(height, width, stride, side).to(operand.device)
    macs = int(fan.sum()) * in_channels * channels * steps
    accumulates = None
    if binary:
        reached = (operand.double().sum(2) * fan).sum((0, 2, 3)) * channels / samples  # a step
        accumulates = float(sum(reached[: steps - read].sum() for read in range(reads)))
    return ConvActivity(name, binary, float(operand.double().mean()), macs, accumulates)


def _micro(picojoules: float) -> float:
    return picojoules * 1e-6
