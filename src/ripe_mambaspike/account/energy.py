"""Synaptic operations and their energy, from measured spikes.

A convolution with a binary operand can be executed by additions only, one for every spike and every weight that reads
it (the dual-kernel form reads it twice: now and one step later). Counts are exact at the borders: a spike at the edge
of the map is read by fewer kernel positions, and the multiply-adds are counted likewise. Neurons, norms, pooling and
memory access are not counted.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.models.config import ModelConfig, RipeConfig
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.mamba_spike import MambaSpike
from ripe_mambaspike.models.observe import run_in_pieces
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.ops.tdm import shift

MAC_PICOJOULES = 4.6  # one multiply-add at 45 nm (Horowitz 2014)
AC_PICOJOULES = 0.9  # one addition
ELEMENTS_PER_PASS = 2**20  # of the input


@dataclass(frozen=True)
class ConvActivity:
    """One spiking layer's convolution over a clip, counts for one sample."""

    layer: str
    binary: bool  # whether its operand is spikes
    rate: float  # mean of the operand: spikes or events per position and step, or of other values
    macs: int  # executed densely
    accumulates: float | None  # executed by additions; None where the operand is not binary
    reads_events: bool = False  # whether its operand is the network's input, which is event counts

    @property
    def dense_picojoules(self) -> float:
        return self.macs * MAC_PICOJOULES

    @property
    def event_picojoules(self) -> float:
        """Energy by additions; a layer that is not eligible stays dense."""
        return self.dense_picojoules if self.accumulates is None else self.accumulates * AC_PICOJOULES


def fan_out(height: int, width: int, stride: int, side: int = 3) -> Tensor:
    """The number of (output, tap) pairs of a padded square kernel that read each input position: [H, W]."""

    def along(size: int) -> Tensor:
        outputs = torch.arange(-(-size // stride))[:, None] * stride
        read = (outputs + torch.arange(side) - side // 2).flatten()
        return torch.bincount(read[(read >= 0) & (read < size)], minlength=size)

    return torch.outer(along(height), along(width))


@torch.no_grad()
def measure_activity(model: RipeMambaSpike | MambaSpike, x: Tensor) -> list[ConvActivity]:
    """Run the network on binned events [B, T, 2, H, W] and count the operations of its spiking convolutions."""
    if isinstance(model, MambaSpike):
        return _measure_baseline(model, x)
    widths = model.config.stage_channels
    counters = [_ConvCounter(f"stage{level}.{which}_conv") for level in (1, 2, 3) for which in ("first", "second")]
    # In pieces with carried state: a long or large clip need not fit into memory whole.
    steps_at_once = max(1, ELEMENTS_PER_PASS // x[:, 0].numel())
    events = x.split(steps_at_once, dim=1)
    for piece, front in zip(events, run_in_pieces(model, x, steps_at_once, ("spikes",)), strict=True):
        layers = list(front.observed.values())  # the first and the second neuron of each stage
        operands = [piece, *layers[:-1]]
        for index, (counter, operand) in enumerate(zip(counters, operands, strict=True)):
            counter.add(operand, widths[index // 2], stride=1 if index % 2 else 2)
    reads = 2 if model.config.tdm else 1  # now, and one step later through the filter
    return [counter.activity(binary=index > 0, reads=reads) for index, counter in enumerate(counters)]


def backbone_macs(config: RipeConfig) -> dict[str, int]:
    """Multiply-adds of the six convolutions at the config's steps and resolution, as `measure` counts them."""
    macs = {}
    size, before = config.in_size, 2
    for level, (grid, channels) in enumerate(zip(config.grids(*size), config.stage_channels, strict=True), 1):
        macs[f"stage{level}.first_conv"] = int(fan_out(*size, 2).sum()) * before * channels * config.time_steps
        macs[f"stage{level}.second_conv"] = int(fan_out(*grid, 1).sum()) * channels**2 * config.time_steps
        size, before = grid, channels
    return macs


def energy_report(model: RipeMambaSpike | MambaSpike, x: Tensor, measured_on: str) -> dict[str, Any]:
    """The energy part of `ripe account`, for one sample; x sets steps and resolution."""
    config = model.config.replace(in_size=tuple(x.shape[3:]), time_steps=x.shape[1])
    spiking = "backbone" if isinstance(config, RipeConfig) else "encoder"
    return energy_of(measure_activity(model, x), config, measured_on, spiking)


def energy_of(
    layers: Sequence[ConvActivity], config: ModelConfig, measured_on: str, spiking: str | None = None
) -> dict[str, Any]:
    """The same from layers measured at the config's steps and resolution.

    `spiking` is the part of the network that these layers are; without it they are the whole network but its scan.
    """
    flops = count_flops(config)
    others = flops.by_part["scan"] if spiking is None else flops.total - flops.by_part[spiking]
    rest = others / 2  # multiply-adds that stay dense in any form
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
    for index, spikes in enumerate(model.run(x, observe=("spikes",)).observed.values(), 1):
        conv, recurrent = _ConvCounter(f"encoder{index}.conv"), _ConvCounter(f"encoder{index}.recurrent")
        conv.add(x, spikes.shape[2])
        recurrent.add(shift(spikes)[0], spikes.shape[2], side=1)
        layers += [conv.activity(binary=index > 1, reads=1), recurrent.activity(binary=True, reads=1)]
        x = spikes
    return layers


class _ConvCounter:
    """Counts the operations of one convolution, piece by piece."""

    def __init__(self, layer: str) -> None:
        self.layer = layer
        self.macs = 0
        self.total = 0.0  # of the operand
        self.count = 0
        self.reached: list[float] = []  # weights read by the spikes of each step

    def add(self, operand: Tensor, channels: int, stride: int = 1, side: int = 3) -> None:
        samples, steps, in_channels, height, width = operand.shape
        fan = fan_out(height, width, stride, side).to(operand.device)
        self.macs += int(fan.sum()) * in_channels * channels * steps
        counts = operand.sum(2, dtype=torch.float64)
        self.total += float(counts.sum())
        self.count += operand.numel()
        self.reached += ((counts * fan).sum((0, 2, 3)) * channels / samples).tolist()

    def activity(self, *, binary: bool, reads: int) -> ConvActivity:
        """The counts, where a spike of step t is read at t, …, t + reads − 1, as far as there are steps."""
        steps = len(self.reached)
        accumulates = sum(sum(self.reached[: steps - late]) for late in range(reads)) if binary else None
        return ConvActivity(self.layer, binary, self.total / self.count, self.macs, accumulates, not binary)


def _micro(picojoules: float) -> float:
    return picojoules * 1e-6
