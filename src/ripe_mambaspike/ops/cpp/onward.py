"""One step of neurons and rates whose state the caller keeps, by the C++ operators.

Many recordings at once, each at a step of its own: `slots` says where in the state each one's lies. Steps done one by
one have the bits that `norm_fire` and `pooled_rates` give for all of them together. A state of zeros is a beginning.
"""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.cpp.call import call, dense
from ripe_mambaspike.ops.norm_fire import Neuron


class NeuronState(NamedTuple):
    """Of every slot."""

    potential: Tensor  # after reset, real and imaginary part [slots, 2, P, C]
    spiked: Tensor  # spikes of the step before [slots, P, C], uint8

    def clear(self, slot: int) -> None:
        self.potential[slot].zero_()
        self.spiked[slot].zero_()


class Onward(NamedTuple):
    """What one step gives, a row before the first: an operator that looks at the step before finds one."""

    spikes: Tensor  # [1 + B, P, C], uint8
    potential: Tensor | None  # [1 + B, P, C], where wanted
    operand: Tensor  # [1 + B, P, C]
    earlier: Tensor | None  # with the potential: spikes of the step before, each in the row before its own
    counts: Tensor  # spikes of every recording [B]


def neuron_state(slots: int, positions: int, channels: int) -> NeuronState:
    return NeuronState(
        torch.zeros(slots, 2, positions, channels), torch.zeros(slots, positions, channels, dtype=torch.uint8)
    )


def onward_fire(
    x: Tensor,
    affine: tuple[Tensor, Tensor] | None,
    neuron: Neuron,
    coefficient: Tensor | None,
    state: NeuronState,
    slots: Tensor,
    *,
    keep_potential: bool,
) -> Onward:
    """x [B, P, C] → `scale_b x_b + shift_b` (both [B, C]) → one step of the neuron in the slots' states."""
    _check(x, slots, state.potential.shape[2:])
    batch, positions, channels = x.shape
    shape = (1 + batch, positions, channels)
    spikes, operand = torch.empty(shape, dtype=torch.uint8), torch.empty(shape)
    potential = torch.empty(shape) if keep_potential else None
    earlier = torch.empty(shape, dtype=torch.uint8) if keep_potential else None
    operand[0].zero_()
    if potential is not None:
        potential[0].zero_()
    counts = torch.empty(batch, dtype=torch.int64)
    parameters = [dense(p, torch.float32) for p in (*(affine or (None, None)), *neuron, coefficient)]
    outputs = (spikes[1:], None if potential is None else potential[1:], operand[1:], counts)
    sizes = (batch, positions, channels)
    call("onward_fire", *sizes, dense(x), *parameters, dense(slots), *state, earlier, *outputs)
    return Onward(spikes, potential, operand, earlier, counts)


def rate_state(slots: int, cells: int, channels: int) -> Tensor:
    """Spikes so far and the last rate [slots, N, 2, C]."""
    return torch.zeros(slots, cells, 2, channels)


def onward_rates(
    spikes: list[Tensor], grid: tuple[int, int], states: list[Tensor], slots: Tensor, steps: Tensor
) -> Tensor:
    """Scales [B, H_i, W_i, C_i] uint8 → rates and their changes on the grid [B, N, 2 ΣC_i]; `steps` were before."""
    ends = list(accumulate(2 * one.shape[-1] for one in spikes))
    pooled = torch.empty(len(slots), grid[0] * grid[1], ends[-1])
    where, when = dense(slots), dense(steps)
    for one, state, start in zip(spikes, states, [0, *ends], strict=False):
        call("onward_rates", *one.shape, *grid, ends[-1], start, dense(one), where, when, state, pooled)
    return pooled


def _check(x: Tensor, slots: Tensor, wanted: torch.Size) -> None:
    if x.dtype != torch.float32:
        raise InputError(f"x is {str(x.dtype).removeprefix('torch.')}; float32 is wanted")
    if x.shape[1:] != wanted or slots.shape != x.shape[:1] or slots.dtype != torch.int64:
        raise InputError(
            f"x has the shape {tuple(x.shape)} and slots {tuple(slots.shape)}; one slot for each of the rows "
            f"[{wanted[0]}, {wanted[1]}] is wanted"
        )
