"""The account of a network on real recordings: rates, the accumulate-only runtime's additions, energy.

Every recording is run twice, by additions and densely, in float64 (`deploy/fuse/accumulate.py`); the spikes of both are
compared. The additions are exactly what `account/energy.py` predicts from the spikes, including borders, strides and
the last step: a spike at the edge is read by fewer taps, with stride 2 an inner one by 1, 2 or 4 of the 9, and the
spikes of the last step are read once, because no step follows. "Rate times multiply-adds times two" ignores all this.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ripe_mambaspike.account.document import document_of
from ripe_mambaspike.account.energy import ConvActivity, backbone_macs, energy_of
from ripe_mambaspike.deploy.forms import require_form
from ripe_mambaspike.deploy.fuse.accumulate import Accumulator, differing_spikes
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.flops import count_flops

ENTRY = "stage1.first_conv"  # reads event counts: multiply-adds in any form


@dataclass(frozen=True)
class Activity:
    """The activity of the network on one recording."""

    file: str
    steps: int
    resolution: tuple[int, int]
    events: float  # mean of the input
    rates: dict[str, float]  # by neuron layer
    additions: dict[str, int]  # by eligible convolution, as executed
    spikes: int  # fired, in all layers
    differing: int  # that the dense network fired differently

    def operand(self, conv: str) -> float:
        """Mean input of a convolution: event counts, or the spikes of the neurons before it."""
        if conv == ENTRY:
            return self.events
        stage, which = conv.split(".")
        if which == "second_conv":
            return self.rates[f"{stage}.first_neuron"]
        return self.rates[f"stage{int(stage.removeprefix('stage')) - 1}.second_neuron"]


def accumulator_of(model: Model) -> Accumulator:
    """The runtime for a network that has a dual-kernel form."""
    model = require_form(model, "counting additions", "training", "deployed", "dual-kernel")
    if not model.config.tdm:
        raise ConfigError(f"tdm: expected true for a dual-kernel form, got false of '{model.name}'", field="tdm")
    return Accumulator(model)


def measure_clip(runtime: Accumulator, file: str, x: Tensor) -> Activity:
    """Run one clip [1, T, 2, H, W] by additions and densely."""
    made, dense = runtime.run(x), runtime.run_dense(x)
    return Activity(
        file=file,
        steps=x.shape[1],
        resolution=(x.shape[3], x.shape[4]),
        events=float(x.double().mean()),
        rates={layer: float(spikes.mean()) for layer, spikes in made.spikes.items()},
        additions=made.additions,
        spikes=sum(int(spikes.sum()) for spikes in made.spikes.values()),
        differing=sum(differing_spikes(made, dense).values()),
    )


def account_recordings(model: Model, activities: Iterable[Activity], measured_on: str) -> dict[str, Any]:
    """The account of a network on recordings of one length and grid.

    The keys of `account`, in which `energy.layers` has means over the recordings, each with its smallest and largest,
    and two more: `operations` (a recording's multiply-adds and additions, of the spiking part and of the network) and
    `recordings` (`count`, `sums`, `spikes`, `spikes_that_differ`, `rates` by neuron layer and `additions` as mean, min
    and max, and `files` with every recording's own).
    """
    seen = list(activities)
    sizes = {(one.steps, one.resolution) for one in seen}
    if len(sizes) != 1:
        raise InputError(f"recordings: expected clips of one size, got {len(sizes)} sizes", field="recordings")
    assert isinstance(model.config, RipeConfig)
    ((steps, resolution),) = sizes
    config = model.config.replace(time_steps=steps, in_size=resolution)
    layers, spreads = [], []
    for conv, macs in backbone_macs(config).items():
        rate = _spread([one.operand(conv) for one in seen])
        made = None if conv == ENTRY else _spread([one.additions[conv] for one in seen])
        additions = None if made is None else made["mean"]
        layers.append(ConvActivity(conv, made is not None, rate["mean"], macs, additions, conv == ENTRY))
        spreads.append({"rate_range": rate, "accumulates_range": made})
    energy = energy_of(layers, config, measured_on, "backbone")
    for layer, spread in zip(energy["layers"], spreads, strict=True):
        layer |= spread
    document = document_of(model, steps, resolution, energy)
    document["operations"] = _operations(layers, config)
    document["recordings"] = {
        "count": len(seen),
        "sums": "float64",
        "spikes": sum(one.spikes for one in seen),
        "spikes_that_differ": sum(one.differing for one in seen),
        "rates": {layer: _spread([one.rates[layer] for one in seen]) for layer in seen[0].rates},
        "additions": _spread([sum(one.additions.values()) for one in seen]),
        "files": [{"file": one.file, "rates": one.rates, "additions": one.additions} for one in seen],
    }
    return document


def _operations(layers: list[ConvActivity], config: RipeConfig) -> dict[str, Any]:
    """Operations per recording: the dense network's multiply-adds, those that remain, and the additions."""
    flops = count_flops(config)
    rest = {part: count // 2 for part, count in flops.by_part.items() if part != "backbone"}
    dense = sum(layer.macs for layer in layers)
    left = sum(layer.macs for layer in layers if not layer.binary)
    made = sum(layer.accumulates or 0 for layer in layers)
    others = sum(rest.values())
    return {
        "backbone": {"dense_macs": dense, "macs": left, "additions": made},
        "network": {"dense_macs": dense + others, "macs": left + others, "additions": made},
        "macs_that_stay": {"entry_convolution": left, **rest},
    }


def _spread(values: list[float] | list[int]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
