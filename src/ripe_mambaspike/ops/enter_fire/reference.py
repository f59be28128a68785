"""From binned events to the first neuron in plain PyTorch, and what the C++ implementation shares with it."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.enter_fire import EnterFireInputs, normalized
from ripe_mambaspike.ops.norm_fire import NormFireInputs
from ripe_mambaspike.ops.norm_fire.reference import norm_fire
from ripe_mambaspike.ops.tdm import tdm


def enter_fire(i: EnterFireInputs) -> tuple[Any, ...]:
    """(spikes, potential, operand) [B, T, H', W', C] and the final states, spikes as floats."""
    images, last = filtered(i, i.last_input)
    current = F.conv2d(images, i.kernel, None, 2, 1).permute(0, 2, 3, 1)
    return outputs_of(norm_fire(neuron_inputs(i, current)), last, current)


def filtered(i: EnterFireInputs, last_input: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Events after the entry norm and the filter, as images [B·T, 2, H, W] in the kernel's dtype.

    Then the filter's next state, None without a filter.
    """
    events, last = normalized(i.x, i.entry_scale, i.entry_shift), None
    if i.filter_coefficient is not None:
        events, last = tdm(events, i.filter_coefficient, last_input)
    return events.flatten(0, 1).to(i.kernel.dtype), last


def neuron_inputs(i: EnterFireInputs, current: Tensor) -> NormFireInputs:
    """The neuron's input, from the convolution's output [B·T, H', W', C]."""
    x = current.flatten(1, 2).unflatten(0, i.x.shape[:2])
    return NormFireInputs(x, i.scale, i.shift, i.firing, True, i.initial_state, i.output_final_state)


def outputs_of(fired: tuple[Any, ...], last_input: Tensor | None, current: Tensor) -> tuple[Any, ...]:
    """All outputs, from those of `norm_fire`."""
    spikes, _, potential, operand, *finals = fired
    maps = (t.unflatten(2, current.shape[1:3]) for t in (spikes, potential, operand))
    return *maps, last_input, *finals
