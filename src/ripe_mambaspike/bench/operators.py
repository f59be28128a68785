"""Every fused operator at the paper's settings, as a call that can be timed against its reference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.bench.machine import PRECISIONS
from ripe_mambaspike.ops.enter_fire import EnterFireInputs
from ripe_mambaspike.ops.leaky_fire import LeakyFireInputs
from ripe_mambaspike.ops.mamba_inner import InnerWeights, MambaInnerInputs
from ripe_mambaspike.ops.membrane_attention import AttendFireInputs, AttendInputs
from ripe_mambaspike.ops.norm_fire import Firing, NormFireInputs
from ripe_mambaspike.ops.operator import OPERATORS, spikes_as
from ripe_mambaspike.ops.patch_moments import PatchMomentsInputs
from ripe_mambaspike.ops.pooled_rates import PooledRatesInputs
from ripe_mambaspike.ops.row_norm import RowNormInputs
from ripe_mambaspike.ops.step_moments import StepMomentsInputs

CHANNELS = (32, 64, 128)  # of the three stages, and widths of the three levels
STATES, TAPS = 16, 4
RATE = 0.15  # share of neurons that fire

SHARPNESS = 2.0

Call = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """One operator at one size. Both calls take the tensors by name and give the same outputs in the same order."""

    operator: str
    setting: str
    inputs: Any  # the operator's NamedTuple
    outputs: tuple[str, ...]  # those that are compared
    learned: tuple[str, ...] = ()  # the tensors that get a gradient; none for inference operators
    spikes: tuple[int, ...] = ()  # outputs that are spikes, which rounding may flip
    rounds_potentials: bool = (
        False  # what drives the potential is stored in the inputs' precision, by the reference too
    )

    @property
    def name(self) -> str:
        return f"{self.operator}, {self.setting}"

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensor inputs by name; elements of a list as `spikes.0`."""
        found: dict[str, Tensor] = {}
        for name, value in OPERATORS[self.operator].named(self.inputs).items():
            if isinstance(value, Tensor):
                found[name] = value
            elif isinstance(value, list):
                found |= {f"{name}.{index}": one for index, one in enumerate(value)}
        return found

    def ours(self, **tensors: Tensor) -> tuple[Tensor, ...]:
        return self._picked(getattr(torch.ops.ripe, self.operator)(*self._filled(tensors)))

    def reference(self, **tensors: Tensor) -> tuple[Tensor, ...]:
        operator = OPERATORS[self.operator]
        return self._picked(operator.reference(operator.pack(self._filled(tensors))))

    def _filled(self, tensors: dict[str, Tensor]) -> list[Any]:
        """The arguments with these tensors replaced."""
        given = OPERATORS[self.operator].named(self.inputs)
        for name, value in given.items():
            if isinstance(value, list):
                given[name] = [tensors[f"{name}.{index}"] for index in range(len(value))]
            else:
                given[name] = tensors.get(name, value)
        if "dtype" in given:
            given["dtype"] = given["x"].dtype
        return list(given.values())

    def _picked(self, found: Any) -> tuple[Tensor, ...]:
        names = [name.removesuffix("[]") for name in OPERATORS[self.operator].outputs]
        outputs = dict(zip(names, (found,) if isinstance(found, Tensor) else found, strict=True))
        if "grad_proxy" in outputs:
            outputs["spikes"] = spikes_as(outputs["spikes"], outputs["grad_proxy"])
        return tuple(outputs[name] for name in self.outputs)


class Maker:
    """Random tensors of one dtype, seeded."""

    def __init__(self, device: torch.device, precision: str) -> None:
        self.device, self.dtype = device, PRECISIONS[precision]
        self.generator = torch.Generator(device).manual_seed(0)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        made = torch.randn(shape, generator=self.generator, device=self.device)
        return made.mul_(scale).to(self.dtype)

    def uniform(self, *shape: int, low: float, high: float) -> Tensor:
        """A parameter: float32 whatever the activations' dtype."""
        return torch.rand(shape, generator=self.generator, device=self.device) * (high - low) + low

    def spikes(self, *shape: int) -> Tensor:
        return (torch.rand(shape, generator=self.generator, device=self.device) < RATE).to(torch.uint8)

    def grad_proxy(self, *shape: int) -> Tensor:
        """Receives the spikes' gradient; it stores nothing."""
        return torch.zeros((), device=self.device, dtype=self.dtype).expand(shape)

    def neuron(self, channels: int, rotating: bool, relaxed: bool) -> Firing:
        decay = self.uniform(channels, low=0.4, high=0.95)
        gain, threshold = (self.uniform(channels, low=0.5, high=1.0) for _ in range(2))
        coefficient = self.uniform(channels, low=-0.5, high=0.5)
        rotation = self.uniform(channels, low=0.0, high=0.1) if rotating else None
        return Firing(decay, rotation, gain, threshold, coefficient, relaxed, SHARPNESS)

    def affine(self, steps: int, channels: int) -> dict[str, Any]:
        bounds = {"scale": (0.5, 1.5), "shift": (-0.2, 0.2)}
        return {name: self.uniform(steps, channels, low=low, high=high) for name, (low, high) in bounds.items()}


def _grids(side: int) -> list[int]:
    """Sides of the three stages' grids."""
    return [-(-side // 2), -(-side // 4), -(-side // 8)]


def cases(
    device: torch.device, precision: str, batch: int, time_steps: int, side: int, relaxed: bool = False
) -> Iterator[Case]:
    """All cases, one at a time to free memory. The relaxed ones, in which no spike can flip, are compared."""
    make = Maker(device, precision)
    yield enter_fire_case(make, batch, time_steps, side, relaxed)
    for stage, (grid, channels) in enumerate(zip(_grids(side), CHANNELS, strict=True), 1):
        size = f"stage {stage}"
        yield norm_fire_case(
            make, size, (batch, time_steps, grid * grid, channels), rotating=stage == 1, relaxed=relaxed
        )
        yield leaky_fire_case(make, size, (batch, time_steps, grid * grid * channels))
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
    inputs = EnterFireInputs(
        x=make.uniform(batch, steps, 2, side, side, low=-1.0, high=1.6).clamp_(min=0),
        **{f"entry_{name}": value for name, value in make.affine(steps, 2).items()},
        filter_coefficient=make.uniform(2, low=-0.5, high=0.5),
        kernel=make.normal(channels, 2, 3, 3, scale=0.5),
        **make.affine(steps, channels),
        firing=make.neuron(channels, rotating=True, relaxed=relaxed),
    )
    flipping = () if relaxed else (0,)
    outputs = ("spikes", "potential", "operand")
    return Case("enter_fire", "stage 1", inputs, outputs, spikes=flipping, rounds_potentials=True)


def norm_fire_case(make: Maker, size: str, shape: tuple[int, ...], rotating: bool, relaxed: bool) -> Case:
    firing = make.neuron(shape[3], rotating, relaxed)
    inputs = NormFireInputs(x=make.normal(*shape), **make.affine(shape[1], shape[3]), firing=firing)
    given = OPERATORS["norm_fire"].named(inputs)
    learned = tuple(name for name in OPERATORS["norm_fire"].gradients if given[name] is not None)
    return Case("norm_fire", size, inputs, ("spikes", "potential", "operand"), learned, () if relaxed else (0,))


def leaky_fire_case(make: Maker, size: str, shape: tuple[int, ...]) -> Case:
    """SpikingJelly's neuron. Its numbers are sums of few powers of two, so that no rounding can flip a spike."""
    x = make.normal(*shape, scale=16.0).round_().div_(8)
    decay, gain = (torch.full((1,), 0.5, device=make.device) for _ in range(2))  # τ = 2
    inputs = LeakyFireInputs(x, decay, gain, None, 1.0, True, True, "atan", SHARPNESS)
    return Case("leaky_fire", size, inputs, ("spikes", "final_state"), ("x", "decay", "gain"), (0,))


def attention_cases(make: Maker, size: str, shape: tuple[int, ...], relaxed: bool) -> Iterator[Case]:
    channels = shape[3]
    wide = {"potential": make.normal(*shape), "spikes": make.spikes(*shape), "features": make.normal(*shape)}
    weights = {name: make.normal(channels, channels, scale=channels**-0.5) for name in ("query", "key", "value")}
    shared: dict[str, Any] = {**wide, **make.affine(shape[1], channels), **weights, "keep_attention": False}
    gain = make.uniform(channels, low=0.5, high=1.5)
    inputs = AttendInputs(**shared, gain=gain, grad_proxy=make.grad_proxy(*shape))
    yield Case("attend", size, inputs, ("modulated",), OPERATORS["attend"].gradients)
    firing = make.neuron(channels, rotating=False, relaxed=relaxed)
    fired = AttendFireInputs(**shared, attention_gain=gain, firing=firing)
    yield Case("attend_fire", size, fired, ("spikes", "operand"), spikes=() if relaxed else (0,))


def step_moments_case(make: Maker, size: str, shape: tuple[int, ...]) -> Case:
    return Case("step_moments", size, StepMomentsInputs(make.normal(*shape)), ("mean", "variance"), ("x",))


def patch_moments_case(make: Maker, size: str, shape: tuple[int, ...]) -> Case:
    """The case of the stage's second convolution, stride 1."""
    return Case("patch_moments", size, PatchMomentsInputs(make.normal(*shape), 1), ("mean", "second"), ("x",))


def pooled_rates_case(make: Maker, batch: int, steps: int, grids: list[int]) -> Case:
    shapes = [(batch, steps, grid, grid, channels) for grid, channels in zip(grids, CHANNELS, strict=True)]
    spikes, proxies = [make.spikes(*shape) for shape in shapes], [make.grad_proxy(*shape) for shape in shapes]
    inputs = PooledRatesInputs(spikes, proxies, grids[-1], grids[-1], [], None, False)
    learned = tuple(f"grad_proxies.{index}" for index in range(len(shapes)))
    return Case("pooled_rates", "all stages", inputs, ("rates",), learned)


def mamba_case(make: Maker, size: str, batch: int, length: int, width: int) -> Case:
    inner, rank = 2 * width, -(-width // 16)
    inputs = MambaInnerInputs(
        inputs=make.normal(batch, length, 2, 2 * inner),
        conv1d_weight=make.uniform(2, inner, TAPS, low=-0.5, high=0.5),
        conv1d_bias=make.uniform(2, inner, low=-0.5, high=0.5),
        x_proj=make.normal(2, rank + 2 * STATES, inner, scale=inner**-0.5),
        dt_proj=make.uniform(2, inner, rank, low=-(rank**-0.5), high=rank**-0.5),
        dt_bias=make.uniform(2, inner, low=-6.9, high=-2.3),
        A=make.uniform(2, inner, STATES, low=-16.0, high=-1.0),
        D=make.uniform(2, inner, low=0.5, high=1.5),
    )
    return Case("mamba_inner", f"{size}, L {length}", inputs, ("out",), ("inputs", *InnerWeights._fields))


def row_norm_case(make: Maker, size: str, batch: int, length: int, width: int) -> Case:
    weight, bias = (make.uniform(width, low=low, high=high) for low, high in ((0.5, 1.5), (-0.5, 0.5)))
    inputs = RowNormInputs(make.normal(batch, length, width), weight, bias, make.dtype)
    return Case("row_norm", f"{size}, {width} wide", inputs, ("out",), ("x", "weight", "bias"))
