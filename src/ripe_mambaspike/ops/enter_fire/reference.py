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
    current = F.conv2d(filtered(i), i.kernel, None, 2, 1).permute(0, 2, 3, 1)
    spikes, _, *rest = norm_fire(neuron_inputs(i, current))
    return *(t.unflatten(2, current.shape[1:3]) for t in (spikes, *rest[:2])), *rest[2:]


def filtered(i: EnterFireInputs) -> Tensor:
    """Events after the entry norm and the filter, as images [B·T, 2, H, W] in the kernel's dtype."""
    normed = normalized(i.x, i.entry_scale[..., None, None], i.entry_shift[..., None, None])
    if i.filter_coefficient is not None:
        normed = tdm(normed, i.filter_coefficient, i.last_input)[0]
    return normed.flatten(0, 1).to(i.kernel.dtype)


def neuron_inputs(i: EnterFireInputs, current: Tensor) -> NormFireInputs:
    """The neuron's input, from the convolution's output [B·T, H', W', C]."""
    x = current.flatten(1, 2).unflatten(0, i.x.shape[:2])
    return NormFireInputs(x, i.scale, i.shift, i.firing, True, i.initial_state, i.output_final_state)
