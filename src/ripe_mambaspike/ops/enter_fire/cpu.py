"""From binned events to the first neuron on a CPU: the events are small there, the convolution is PyTorch's."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.convolve import conv_images
from ripe_mambaspike.ops.enter_fire import EnterFireInputs
from ripe_mambaspike.ops.enter_fire.reference import filtered, neuron_inputs, outputs_of
from ripe_mambaspike.ops.norm_fire.cpu import norm_fire


def enter_fire(i: EnterFireInputs) -> tuple[Tensor, ...]:
    rows, before = None if i.initial_state is None else i.initial_state.rows, i.last_input
    images, last = filtered(i, before if before is None or rows is None else before.index_select(0, rows))
    if last is not None and before is not None and rows is not None:
        before.index_copy_(0, rows, last)
    images = images.contiguous(memory_format=torch.channels_last)
    current = conv_images(images, i.kernel, None, 2).permute(0, 2, 3, 1).contiguous()
    kept = last.contiguous() if last is not None and i.output_final_state else i.x.new_empty(0)
    return outputs_of(norm_fire(neuron_inputs(i, current)), kept, current)
