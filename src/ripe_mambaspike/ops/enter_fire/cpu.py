"""From binned events to the first neuron on a CPU: the events are small there, the convolution is PyTorch's."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.convolve import conv_images
from ripe_mambaspike.ops.enter_fire import EnterFireInputs
from ripe_mambaspike.ops.enter_fire.reference import filtered, neuron_inputs
from ripe_mambaspike.ops.norm_fire.cpu import norm_fire


def enter_fire(i: EnterFireInputs) -> tuple[Tensor, ...]:
    images = filtered(i).contiguous(memory_format=torch.channels_last)
    current = conv_images(images, i.kernel, None, 2).permute(0, 2, 3, 1).contiguous()
    spikes, _, *rest = norm_fire(neuron_inputs(i, current))
    return *(t.unflatten(2, current.shape[1:3]) for t in (spikes, *rest[:2])), *rest[2:]
