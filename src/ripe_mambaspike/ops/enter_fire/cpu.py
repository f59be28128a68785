"""From binned events to the first neuron on a CPU: the events are small there, the convolution is PyTorch's."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.norm_fire.cpu import norm_fire
from ripe_mambaspike.ops.tdm import tdm


def enter_fire(
    x: Tensor,
    entry_scale: Tensor,
    entry_shift: Tensor,
    filtered: Tensor | None,
    kernel: Tensor,
    scale: Tensor,
    shift: Tensor,
    decay: Tensor,
    rotation: Tensor | None,
    gain: Tensor,
    threshold: Tensor,
    coefficient: Tensor | None,
    relaxed: bool,
    sharpness: float,
) -> tuple[Tensor, ...]:
    normed = torch.addcmul(entry_shift[..., None, None], x.float(), entry_scale[..., None, None])
    if filtered is not None:
        normed = tdm(normed, filtered.float())[0]
    flat = normed.flatten(0, 1).to(kernel.dtype).contiguous(memory_format=torch.channels_last)
    current = F.conv2d(flat, kernel, None, 2, 1).permute(0, 2, 3, 1).contiguous()
    rows = current.flatten(1, 2).unflatten(0, x.shape[:2])
    fired = norm_fire(rows, scale, shift, decay, rotation, gain, threshold, coefficient, relaxed, sharpness, True)
    return tuple(t.unflatten(2, current.shape[1:3]) for t in fired)
