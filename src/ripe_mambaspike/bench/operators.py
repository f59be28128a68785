"""Every fused operator at the paper's settings, as a call that can be timed beside its reference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.bench.machine import PRECISIONS
from ripe_mambaspike.ops.enter_fire import enter_fire, enter_fire_reference
from ripe_mambaspike.ops.mamba_inner import InnerWeights, mamba_inner, mamba_inner_reference
from ripe_mambaspike.ops.membrane_attention import AttentionWeights, attend, attend_fire, attend_reference
from ripe_mambaspike.ops.norm_fire import Neuron, norm_fire, norm_fire_reference, spikes_as
from ripe_mambaspike.ops.patch_moments import patch_moments, patch_moments_reference
from ripe_mambaspike.ops.pooled_rates import pooled_rates, pooled_rates_reference
from ripe_mambaspike.ops.row_norm import row_norm, row_norm_reference
from ripe_mambaspike.ops.step_moments import step_moments, step_moments_reference

CHANNELS = (32, 64, 128)  # of the three stages, and widths of the three levels
STATES, TAPS = 16, 4
RATE = 0.15  # share of neurons that fire

Call = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """One operator at one size. Both calls take the tensors by name and give the same outputs in the same order."""

    operator: str
    setting: str
    tensors: dict[str, Tensor]
    learned: tuple[str, ...]  # the tensors that get a gradient; none for an operator of inference
    ours: Call
    reference: Call
    spikes: tuple[int, ...] = ()  # outputs that are spikes, which rounding may flip

    @property
    def name(self) -> str:
        return f"{self.operator}, {self.setting}"


class Maker:
    """Random tensors of one precision, the same every time."""

    def __init__(self, device: torch.device, precision: str) -> None:
        self.device, self.dtype = device, PRECISIONS[precision]
        self.generator = torch.Generator(device).manual_seed(0)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        made = torch.randn(shape, generator=self.generator, device=self.device)
        return made.mul_(scale).to(self.dtype)

    def uniform(self, *shape: int, low: float, high: float) -> Tensor:
        """A parameter: float32 whatever the activations are."""
        return torch.rand(shape, generator=self.generator, device=self.device) * (high - low) + low

    def spikes(self, *shape: int) -> Tensor:
        return (torch.rand(shape, generator=self.generator, device=self.device) < RATE).to(torch.uint8)

    def carrier(self, *shape: int) -> Tensor:
        """Through which the spikes' gradient flows; it holds nothing."""
        return torch.zeros((), device=self.device, dtype=self.dtype).expand(shape)

    def neuron(self, channels: int, rotating: bool) -> dict[str, Tensor]:
        made = {
            "decay": self.uniform(channels, low=0.4, high=0.95),
            "gain": self.uniform(channels, low=0.5, high=1.0),
            "threshold": self.uniform(channels, low=0.5, high=1.0),
            "coefficient": self.uniform(channels, low=-0.5, high=0.5),
        }
        return {**made, "rotation": self.uniform(channels, low=0.0, high=0.1)} if rotating else made

    def affine(self, steps: int, channels: int) -> dict[str, Tensor]:
        bounds = {"scale": (0.5, 1.5), "shift": (-0.2, 0.2)}
        return {name: self.uniform(steps, channels, low=low, high=high) for name, (low, high) in bounds.items()}


def _neuron(given: dict[str, Tensor]) -> Neuron:
    return Neuron(given["decay"], given.get("rotation"), given["gain"], given["threshold"])


def _grids(side: int) -> list[int]:
    """Sides of the three stages' grids."""
    return [-(-side // 2), -(-side // 4), -(-side // 8)]


def cases(
    device: torch.device, precision: str, batch: int, time_steps: int, side: int, relaxed: bool = False
) -> Iterator[Case]:
    """All of them, one at a time: what the last one held can go. Relaxed, nothing flips: so they are compared."""
    make = Maker(device, precision)
    yield enter_fire_case(make, batch, time_steps, side, relaxed)
    for stage, (grid, channels) in enumerate(zip(_grids(side), CHANNELS, strict=True), 1):
        size = f"stage {stage}"
        yield norm_fire_case(
            make, size, (batch, time_steps, grid * grid, channels), rotating=stage == 1, relaxed=relaxed
        )
        yield from attention_cases(make, size, (batch, time_steps, grid * grid, channels), relaxed)
    for stage, (grid, channels) in enumerate(zip(_grids(side), CHANNELS, strict=True), 1):
        yield step_moments_case(make, f"stage {stage}", (batch, time_steps, grid * grid, channels))
        yield patch_moments_case(make, f"stage {stage}", (batch, time_steps, grid, grid, channels))
    yield pooled_rates_case(make, batch, time_steps, _grids(side))
    tokens = _grids(side)[-1] ** 2
    for level, width in enumerate(CHANNELS, 1):
        yield mamba_case(make, f"level {level}", batch, time_steps * tokens, width)
        yield row_norm_case(make, f"level {level}", batch, time_steps * tokens, width)
        tokens = -(-tokens // 2)


def enter_fire_case(make: Maker, batch: int, steps: int, side: int, relaxed: bool) -> Case:
    channels = CHANNELS[0]
    tensors = {
        "x": make.uniform(batch, steps, 2, side, side, low=-1.0, high=1.6).clamp_(min=0),
        **{f"entry_{name}": value for name, value in make.affine(steps, 2).items()},
        "filtered": make.uniform(2, low=-0.5, high=0.5),
        "kernel": make.normal(channels, 2, 3, 3, scale=0.5),
        **make.affine(steps, channels),
        **make.neuron(channels, rotating=True),
    }

    def given(t: dict[str, Tensor]) -> tuple[Any, ...]:
        ends = ((t["entry_scale"], t["entry_shift"]), t["filtered"], t["kernel"], (t["scale"], t["shift"]))
        return t["x"], *ends, _neuron(t), t["coefficient"]

    def ours(**t: Tensor) -> tuple[Tensor, ...]:
        return enter_fire(*given(t), relaxed=relaxed)

    def reference(**t: Tensor) -> tuple[Tensor, ...]:
        return enter_fire_reference(*given(t), relaxed=relaxed)

    return Case("enter_fire", "stage 1", tensors, (), ours, reference, () if relaxed else (0,))


def norm_fire_case(make: Maker, size: str, shape: tuple[int, ...], rotating: bool, relaxed: bool) -> Case:
    tensors = {"x": make.normal(*shape), **make.affine(shape[1], shape[3]), **make.neuron(shape[3], rotating)}

    def ours(**t: Tensor) -> tuple[Tensor, ...]:
        out = norm_fire(t["x"], t["scale"], t["shift"], _neuron(t), t["coefficient"], relaxed=relaxed)
        return spikes_as(out.spikes, out.carrier), out.potential, out.operand

    def reference(**t: Tensor) -> tuple[Tensor, ...]:
        affine = (t["scale"], t["shift"])
        return norm_fire_reference(t["x"], *affine, _neuron(t), t["coefficient"], relaxed=relaxed)

    return Case("norm_fire", size, tensors, tuple(tensors), ours, reference, () if relaxed else (0,))


def attention_cases(make: Maker, size: str, shape: tuple[int, ...], relaxed: bool) -> Iterator[Case]:
    channels = shape[3]
    bound = channels**-0.5
    tensors = {
        "potential": make.normal(*shape),
        "spikes": make.spikes(*shape),
        "carrier": make.carrier(*shape),
        "features": make.normal(*shape),
        **make.affine(shape[1], channels),
        **{name: make.normal(channels, channels, scale=bound) for name in ("query", "key", "value")},
        "gain": make.uniform(channels, low=0.5, high=1.5),
    }

    def weights(t: dict[str, Tensor]) -> AttentionWeights:
        return AttentionWeights(t["query"], t["key"], t["value"], t["gain"])

    def ours(**t: Tensor) -> tuple[Tensor, ...]:
        spikes, carrier = t["spikes"], t["carrier"]
        out = attend(t["potential"], spikes, carrier, t["features"], t["scale"], t["shift"], weights(t))
        return (out[0],)

    def reference(**t: Tensor) -> tuple[Tensor, ...]:
        spikes = spikes_as(t["spikes"], t["carrier"])
        out = attend_reference(t["potential"], spikes, t["features"], t["scale"], t["shift"], weights(t))
        return (out[0],)

    learned = tuple(name for name in tensors if name != "spikes")
    yield Case("attend", size, tensors, learned, ours, reference)

    neuron = {f"neuron_{name}": value for name, value in make.neuron(channels, rotating=False).items()}

    def parts(t: dict[str, Tensor]) -> tuple[Neuron, Tensor]:
        given = {name.removeprefix("neuron_"): value for name, value in t.items() if name.startswith("neuron_")}
        return _neuron(given), given["coefficient"]

    def ours_fired(**t: Tensor) -> tuple[Tensor, ...]:
        arguments = (t["potential"], t["spikes"], t["features"], t["scale"], t["shift"], weights(t))
        spikes, operand, _ = attend_fire(*arguments, *parts(t), relaxed=relaxed)
        return spikes, operand

    def reference_fired(**t: Tensor) -> tuple[Tensor, ...]:
        spikes, _, operand = norm_fire_reference(reference(**t)[0], None, None, *parts(t), relaxed=relaxed)
        return spikes, operand

    yield Case("attend_fire", size, {**tensors, **neuron}, (), ours_fired, reference_fired, () if relaxed else (0,))


def step_moments_case(make: Maker, size: str, shape: tuple[int, ...]) -> Case:
    tensors = {"x": make.normal(*shape)}
    return Case(
        "step_moments",
        size,
        tensors,
        ("x",),
        lambda x: step_moments(x),
        lambda x: step_moments_reference(x.float()),
    )


def patch_moments_case(make: Maker, size: str, shape: tuple[int, ...]) -> Case:
    """Of the stage's second convolution, stride 1."""
    tensors = {"x": make.normal(*shape)}
    return Case(
        "patch_moments",
        size,
        tensors,
        ("x",),
        lambda x: patch_moments(x, 1),
        lambda x: patch_moments_reference(x.float(), 1),
    )


def pooled_rates_case(make: Maker, batch: int, steps: int, grids: list[int]) -> Case:
    tensors: dict[str, Tensor] = {}
    for stage, (grid, channels) in enumerate(zip(grids, CHANNELS, strict=True), 1):
        shape = (batch, steps, grid, grid, channels)
        tensors |= {f"spikes{stage}": make.spikes(*shape), f"carrier{stage}": make.carrier(*shape)}
    carriers = tuple(name for name in tensors if name.startswith("carrier"))
    last = (grids[-1], grids[-1])

    def pairs(t: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [(t[name.replace("carrier", "spikes")], t[name]) for name in carriers]

    def ours(**t: Tensor) -> tuple[Tensor, ...]:
        spikes, carrying = (list(part) for part in zip(*pairs(t), strict=True))
        return (pooled_rates(spikes, carrying, last),)

    def reference(**t: Tensor) -> tuple[Tensor, ...]:
        return (pooled_rates_reference([spikes_as(*pair) for pair in pairs(t)], last),)

    return Case("pooled_rates", "all stages", tensors, carriers, ours, reference)


def mamba_case(make: Maker, size: str, batch: int, length: int, width: int) -> Case:
    inner, rank = 2 * width, -(-width // 16)
    tensors = {
        "inputs": make.normal(batch, length, 2, 2 * inner),
        "conv": make.uniform(2, inner, TAPS, low=-0.5, high=0.5),
        "conv_bias": make.uniform(2, inner, low=-0.5, high=0.5),
        "x_proj": make.normal(2, rank + 2 * STATES, inner, scale=inner**-0.5),
        "dt_proj": make.uniform(2, inner, rank, low=-(rank**-0.5), high=rank**-0.5),
        "dt_bias": make.uniform(2, inner, low=-6.9, high=-2.3),
        "decay": make.uniform(2, inner, STATES, low=-16.0, high=-1.0),
        "skip": make.uniform(2, inner, low=0.5, high=1.5),
    }
    names = InnerWeights._fields

    def ours(**t: Tensor) -> tuple[Tensor, ...]:
        return (mamba_inner(t["inputs"], InnerWeights(*(t[name] for name in names))),)

    def reference(**t: Tensor) -> tuple[Tensor, ...]:
        weights: Any = InnerWeights(*(t[name] for name in names))
        return (mamba_inner_reference(t["inputs"], weights),)

    return Case("mamba_inner", f"{size}, L {length}", tensors, tuple(tensors), ours, reference)


def row_norm_case(make: Maker, size: str, batch: int, length: int, width: int) -> Case:
    bounds = {"weight": (0.5, 1.5), "bias": (-0.5, 0.5)}
    tensors = {"x": make.normal(batch, length, width)}
    tensors |= {name: make.uniform(width, low=low, high=high) for name, (low, high) in bounds.items()}

    def ours(**t: Tensor) -> tuple[Tensor, ...]:
        return (row_norm(t["x"], t["weight"], t["bias"], t["x"].dtype),)

    def reference(**t: Tensor) -> tuple[Tensor, ...]:
        return (row_norm_reference(t["x"], t["weight"], t["bias"], t["x"].dtype),)

    return Case("row_norm", f"{size}, {width} wide", tensors, tuple(tensors), ours, reference)
