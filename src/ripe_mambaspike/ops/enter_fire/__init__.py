"""From binned events to the first neuron in one operator, for inference.

Entry norm, temporal filter, the first convolution (2 channels in, stride 2), its norm and the neuron: the tensors
between them, several times the size of the input, are never written. The symbols are those of `norm_fire`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.norm_fire import FINALS, FireState, Firing, empty_finals, final_state
from ripe_mambaspike.ops.operator import Operator, empty_if, select_steps


class EnterFireInputs(NamedTuple):
    x: Tensor  # [B, T, 2, H, W]
    entry_scale: Tensor  # [T, 2], or [B, T, 2] where samples are at different steps
    entry_shift: Tensor
    filter_coefficient: Tensor | None  # [2]
    kernel: Tensor  # [C, 2, 3, 3]
    scale: Tensor  # [T, C] or [B, T, C]
    shift: Tensor
    firing: Firing
    last_input: Tensor | None = None  # the initial state of the filter
    initial_state: FireState | None = None  # of the neuron
    output_final_state: bool = False


class EnterFireState(NamedTuple):
    input: Tensor | None  # normalized events of the last step [B, 2, H, W], float32; None without a filter
    neuron: FireState  # its rows are those of the input, too


class EnterFireOutput(NamedTuple):
    spikes: Tensor  # [B, T, H', W', C], H' = ⌈H/2⌉; uint8, or the kernel's precision when relaxed
    potential: Tensor  # before the reset
    operand: Tensor  # what the next convolution reads


def enter_fire(
    x: Tensor,
    entry: tuple[Tensor, Tensor],
    filter_coefficient: Tensor | None,
    kernel: Tensor,
    affine: tuple[Tensor, Tensor],
    firing: Firing,
    *,
    first_step: int | Tensor = 0,
    initial_state: EnterFireState | None = None,
    output_final_state: bool = False,
) -> tuple[EnterFireOutput, EnterFireState | None]:
    """Events x [B, T, 2, H, W] → spikes, potential and operand [B, T, H', W', C], and the final state if requested.

    entry: scale and shift [S, 2] or [1, 2]; filter_coefficient: λ [2] of the filter before the kernel [C, 2, 3, 3];
    affine: scale and shift [S, C] or [1, C] after it.
    """
    tables: list[Any] = [select_steps(table, first_step, x.shape[1]) for table in (*entry, *affine)]
    entry_scale, entry_shift, scale, shift = tables
    weights = (entry_scale, entry_shift, filter_coefficient, kernel, scale, shift)
    last_input, before = initial_state or (None, None)
    found = ENTER_FIRE(EnterFireInputs(x, *weights, firing, last_input, before, output_final_state))
    out = EnterFireOutput(*found[:3])
    if not output_final_state:
        return out, None
    return out, EnterFireState(found[3] if found[3].numel() else None, final_state(found[4:], out.spikes, firing))


def normalized(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """`scale x + shift`, at least in float32: x [B, T, 2, H, W], scale and shift [T, 2] or [B, T, 2]."""
    scale, shift = scale[..., None, None], shift[..., None, None]
    if x.is_cuda:  # PyTorch rounds the product there; through float64 the result is rounded once, as in the kernels
        return torch.addcmul(shift.double(), x.double(), scale.double()).to(shift.dtype)
    return torch.addcmul(shift, x.to(shift.dtype), scale)


def empty_enter_fire(i: EnterFireInputs) -> tuple[Tensor, ...]:
    """All outputs, uninitialized."""
    samples, steps, _, height, width = i.x.shape
    shape = (samples, steps, -(-height // 2), -(-width // 2), i.kernel.shape[0])
    potential, operand = (i.x.new_empty(shape, dtype=i.kernel.dtype) for _ in range(2))
    spikes = i.x.new_empty(shape, dtype=i.kernel.dtype if i.firing.relaxed else torch.uint8)
    kept = i.output_final_state and i.filter_coefficient is not None
    final_input = empty_if(kept, i.x, (samples, 2, height, width), i.entry_shift.dtype)
    return spikes, potential, operand, final_input, *empty_finals(i.firing, i.output_final_state, operand)


ENTER_FIRE = Operator(
    "enter_fire", EnterFireInputs, ("spikes", "potential", "operand", "final_input", *FINALS), empty_enter_fire
)
