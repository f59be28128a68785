"""From binned events to the first neuron in one operator, for inference.

Entry norm, temporal filter, the first convolution (2 channels in, stride 2), its norm and the neuron: the tensors
between them, several times the size of the input, are never written.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.backend import run
from ripe_mambaspike.ops.norm_fire import Neuron, norm_fire_reference
from ripe_mambaspike.ops.tdm import tdm


def enter_fire(
    x: Tensor,
    entry: tuple[Tensor, Tensor],
    filtered: Tensor | None,
    kernel: Tensor,
    affine: tuple[Tensor, Tensor],
    neuron: Neuron,
    coefficient: Tensor | None,
    *,
    relaxed: bool = False,
    sharpness: float = 2.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Events x [B, T, 2, H, W] → (spikes, potential, operand) [B, T, H', W', C], H' = ⌈H/2⌉, the kernel's precision.

    entry: scale and shift [T, 2]; filtered: λ [2] of the filter before the kernel [C, 2, 3, 3]; affine: scale and
    shift [T, C] behind it; coefficient: λ [C] of the next filter.
    """
    spikes, potential, operand = torch.ops.ripe.enter_fire(
        x, *entry, filtered, kernel, *affine, *neuron, coefficient, relaxed, sharpness
    )
    return spikes, potential, operand


def enter_fire_reference(
    x: Tensor,
    entry: tuple[Tensor, Tensor],
    filtered: Tensor | None,
    kernel: Tensor,
    affine: tuple[Tensor, Tensor],
    neuron: Neuron,
    coefficient: Tensor | None,
    *,
    relaxed: bool = False,
    sharpness: float = 2.0,
) -> tuple[Tensor, ...]:
    """The same in plain PyTorch, spikes as numbers."""
    scale, shift = (value[..., None, None] for value in entry)
    normed = shift + scale * x
    if filtered is not None:
        normed = tdm(normed, filtered)[0]
    current = F.conv2d(normed.flatten(0, 1).to(kernel.dtype), kernel, None, 2, 1).permute(0, 2, 3, 1)
    flat = current.flatten(1, 2).unflatten(0, x.shape[:2])
    fired = norm_fire_reference(flat, *affine, neuron, coefficient, relaxed=relaxed, sharpness=sharpness)
    return tuple(t.unflatten(2, current.shape[1:3]) for t in fired)


@torch.library.custom_op("ripe::enter_fire", mutates_args=())
def _enter_fire(
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
) -> tuple[Tensor, Tensor, Tensor]:
    convolution = (entry_scale, entry_shift, filtered, kernel, scale, shift)
    neuron = (decay, rotation, gain, threshold, coefficient)
    return tuple(run("enter_fire", "enter_fire", x, *convolution, *neuron, relaxed, sharpness))


@_enter_fire.register_fake
def _(
    x: Tensor, entry_scale: Tensor, entry_shift: Tensor, filtered: Tensor | None, kernel: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    samples, steps, _, height, width = x.shape
    shape = (samples, steps, -(-height // 2), -(-width // 2), kernel.shape[0])
    spikes = x.new_empty(shape, dtype=kernel.dtype if rest[-2] else torch.uint8)
    return spikes, x.new_empty(shape, dtype=kernel.dtype), x.new_empty(shape, dtype=kernel.dtype)
