"""The accumulate-only runtime: a dual-kernel network whose eligible convolutions use additions only.

Five of the six convolutions of the spiking part read spikes. Here each spike adds rows of weights to the outputs that
it reaches (`ops/sparse_conv`), and the additions are counted. Everything else is the network's own code, so the spikes
equal those of the dense dual-kernel network in every step: an exact sum does not depend on the order of its terms. The
weights are therefore rounded to a grid, one power of two per channel, on which every partial sum is exact:

| sums | weights | rounding by the grid |
|---|---|---|
| float64 | the network's, in a float64 network | at most 2⁻⁵³ of the sum of a channel's weights |
| float32 | rounded, in a float32 network | at most 2⁻²⁴ of that sum |
| int8 | one byte each, added up in int32, in a float32 network | at most 1/127 of a channel's largest weight |

The scale of an int8 channel is a power of two; it is applied once per output, before the norm's affine.
"""

import copy
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ripe_mambaspike.deploy.fuse.convert import dual_kernel
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.base import Model, Output, require_unmodified
from ripe_mambaspike.models.observe import by_layer, run_in_pieces
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.stored import MAX_INT8
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.repconv import DualKernelConv
from ripe_mambaspike.nn.state import State
from ripe_mambaspike.ops.sparse_conv import accumulate_conv, arranged_weights

Sums = Literal["float64", "float32", "int8"]
SUM_BITS = {"float64": 53, "float32": 24, "int8": 24}  # bits of the sums; the dense twin of int8 sums in float32
MIN_EXPONENT = -100  # of a grid; smaller values are zero


class Accumulated(NamedTuple):
    """The outputs of a pass and its additions."""

    output: Output
    spikes: dict[str, Tensor]  # by neuron layer, `stage1.first_neuron` on, [B, T, C, H, W]
    additions: dict[str, int]  # by eligible convolution, `stage1.second_conv` on, for all samples; empty when dense
    state: State


class AccumulatingConv(nn.Module):
    """A `DualKernelConv` by additions; the state it returns includes their count.

    With the step [C] of the grid of its weights, these become int8 and are summed in int32.
    """

    now: Tensor
    before: Tensor
    bias: Tensor
    step: Tensor | None  # the value of one unit of int8 weights [C]

    def __init__(self, dense: DualKernelConv, step: Tensor | None = None) -> None:
        super().__init__()
        self.in_channels, self.channels, self.stride = dense.in_channels, dense.channels, dense.stride
        now, before, bias = (value.detach() for value in (dense.weight_now, dense.weight_before, dense.bias))
        if step is not None:
            now, before = (_to_grid_units(value, step).to(torch.int8) for value in (now, before))
            bias, step = _to_grid_units(bias, step).to(torch.int32), step.to(bias.dtype)
        for name, value in {"now": now, "before": before, "bias": bias, "step": step}.items():
            self.register_buffer(name, value, persistent=False)
        self.table = arranged_weights(now, before)

    def forward(self, x: Tensor, mode: ForwardMode = HARD, initial_state: State | None = None) -> tuple[Tensor, State]:
        """Spikes [B, T, C_in, H, W] → [B, T, C, H', W'], in the input's precision.

        The state has the last input and the additions made since the recording began, for all samples.
        """
        if mode.relaxed:
            raise InputError.expected("mode", "hard spikes to add up", "a relaxed pass")
        spikes = x.to(torch.uint8).movedim(2, -1).contiguous()
        earlier = initial_state["input"].movedim(1, -1).contiguous() if initial_state else None
        before = initial_state["additions"] if initial_state else 0
        weights = (self.now, self.before, self.bias)
        out, additions = accumulate_conv(spikes, *weights, self.stride, earlier, self.table)
        out = out.to(x.dtype) if self.step is None else out.to(x.dtype) * self.step
        state = {"input": spikes[:, -1].movedim(-1, 1), "additions": torch.full((len(x),), additions) + before}
        return out.movedim(-1, 2).contiguous(), state


class Accumulator:
    """A network that runs by additions, and its dense twin: the dual-kernel network with the same weights.

    `grid=False` does not round the weights: sums then depend on their order, and spikes near the threshold may differ
    from the dense network's. int8 weights are always on their grid.
    """

    def __init__(self, model: Model, sums: Sums = "float64", *, grid: bool = True) -> None:
        if sums not in SUM_BITS:
            raise ConfigError.expected("sums", f"one of {', '.join(SUM_BITS)}", sums)
        self.sums = sums
        self.dense = _dense_twin(model, torch.float64 if sums == "float64" else torch.float32)
        steps = _put_on_grid(self.dense, sums) if grid or sums == "int8" else {}
        shared: dict[int, Any] = {id(parameter): parameter for parameter in self.dense.parameters()}
        self.network = copy.deepcopy(self.dense, shared)
        for name, conv in _eligible(self.dense).items():
            accumulating = AccumulatingConv(conv, steps[name] if sums == "int8" else None)
            self.network.set_submodule(name, accumulating)

    def run(self, x: Tensor, steps_at_once: int | None = None) -> Accumulated:
        """Binned events [B, T, 2, H, W] by additions: at once, or in pieces of so many steps with carried state."""
        return _run(self.network, x, steps_at_once)

    def run_dense(self, x: Tensor, steps_at_once: int | None = None) -> Accumulated:
        """The same by the dense twin."""
        return _run(self.dense, x, steps_at_once)


def differing_spikes(first: Accumulated, second: Accumulated) -> dict[str, int]:
    """The number of differing spikes by neuron layer."""
    return {layer: int((spikes != second.spikes[layer]).sum()) for layer, spikes in first.spikes.items()}


def grid_step(now: Tensor, before: Tensor, bias: Tensor, sums: Sums) -> Tensor:
    """The power of two [C], in float64, on whose multiples every sum of a channel's weights is exact."""
    terms = torch.cat([value.detach().double().flatten(1) for value in (now, before, bias[:, None])], 1).abs()
    wanted = terms.sum(1) / (2 ** SUM_BITS[sums] - 2 * terms.shape[1])  # with a margin for rounding to the grid
    if sums == "int8":
        wanted = torch.maximum(wanted, terms[:, :-1].amax(1) / MAX_INT8)
    mantissa, exponent = torch.frexp(wanted)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)  # a power of two is its own step
    return torch.ldexp(torch.ones_like(wanted), exponent.clamp(min=MIN_EXPONENT))


@torch.no_grad()
def _run(network: RipeMambaSpike, x: Tensor, steps_at_once: int | None) -> Accumulated:
    if steps_at_once is not None and steps_at_once < 1:
        raise InputError.expected("steps_at_once", "an int of at least 1", steps_at_once)
    fronts = list(run_in_pieces(network, x.to(network.dtype), steps_at_once or max(1, x.shape[1]), ("spikes",)))
    seen = [by_layer(front.observed, "spikes") for front in fronts]
    spikes = {_stage_name(layer): torch.cat([one[layer] for one in seen], 1) for layer in seen[0]}
    features = torch.cat([front.features for front in fronts], 1)
    attention = torch.cat([front.attention for front in fronts], 1)
    state = fronts[-1].state
    indices = network.select(fronts[-1].token_scores)
    logits = network.classify(features, attention, indices)
    rates = torch.stack([fired.float().mean() for fired in spikes.values()])
    additions = {_stage_name(layer): int(count[0]) for layer, count in by_layer(state, "additions").items()}
    return Accumulated(Output(logits, rates, attention, indices), spikes, additions, state)


def _stage_name(layer: str) -> str:
    """`stages.0.first_conv` as `stage1.first_conv`, its name in reports."""
    _, level, rest = layer.split(".")
    return f"stage{int(level) + 1}.{rest}"


def _dense_twin(model: Model, dtype: torch.dtype) -> RipeMambaSpike:
    """A copy in the dual-kernel form and the dtype of the pass; half precision is converted to float32 first."""
    if isinstance(model, RipeMambaSpike):
        require_unmodified(model, "Accumulator")
    if isinstance(model, RipeMambaSpike) and model.dtype not in (torch.float32, torch.float64):
        model = copy.deepcopy(model).float()
    if isinstance(model, RipeMambaSpike) and model.config.form == "dual-kernel":
        return copy.deepcopy(model).eval().to(dtype)
    return dual_kernel(model, quiet=True).to(dtype)


def _eligible(network: RipeMambaSpike) -> dict[str, DualKernelConv]:
    return {name: module for name, module in network.named_modules() if isinstance(module, DualKernelConv)}


@torch.no_grad()
def _put_on_grid(network: RipeMambaSpike, sums: Sums) -> dict[str, Tensor]:
    """Round the eligible weights to their channels' grids, in place; the steps by convolution."""
    steps = {}
    for name, conv in _eligible(network).items():
        weights = (conv.weight_now, conv.weight_before, conv.bias)
        steps[name] = step = grid_step(*weights, sums)
        for weight in weights:
            weight.copy_(_to_grid_units(weight, step) * _broadcast_step(step, weight))
    return steps


def _to_grid_units(weight: Tensor, step: Tensor) -> Tensor:
    """Every weight in units of its channel's step, rounded."""
    return (weight.double() / _broadcast_step(step, weight)).round()


def _broadcast_step(step: Tensor, weight: Tensor) -> Tensor:
    """The step of every output channel, to be broadcast over its weights."""
    return step.reshape(-1, *[1] * (weight.ndim - 1))
