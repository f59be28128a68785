"""The accumulate-only convolution, Prop. (ac-tdm), driven by the spikes themselves.

    out_t = W_now * s_t − W_before * s_{t−1} + b

A spike is 0 or 1, so no product is needed: each spike adds a row of weights to every output it reaches. The time goes
with the number of spikes, the result is the dense convolution's to rounding, and the additions are counted as made.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.backend import backend, implementation
from ripe_mambaspike.ops.tdm import shift


def accumulate_conv(
    spikes: Tensor, weight_now: Tensor, weight_before: Tensor | None, bias: Tensor | None, stride: int = 1
) -> tuple[Tensor, int]:
    """spikes [B, T, H, W, Cin] of bytes 0 or 1 → (out [B, T, H', W', C] float32, additions).

    weights [C, Cin, 3, 3], bias [C], padding 1, stride 1 or 2; nothing came before the first step. An addition is
    one spike at one tap inside the image for one output channel, of either kernel.
    """
    if spikes.dtype != torch.uint8 or spikes.ndim != 5:
        raise InputError(f"spikes are {spikes.dtype} {list(spikes.shape)}; bytes [B, T, H, W, Cin] are wanted")
    if stride not in (1, 2):
        raise InputError(f"stride is {stride}; 1 or 2 is wanted")
    for name, weight in (("weight_now", weight_now), ("weight_before", weight_before)):
        if weight is not None and weight.shape != (weight_now.shape[0], spikes.shape[4], 3, 3):
            raise InputError(
                f"{name} is {list(weight.shape)}; [C, {spikes.shape[4]}, 3, 3] is wanted, C as weight_now's"
            )
    if bias is not None and bias.shape != weight_now.shape[:1]:
        raise InputError(f"bias is {list(bias.shape)}; [{weight_now.shape[0]}] is wanted")
    convolve = accumulate_conv_reference
    if backend(spikes, torch.float32) == "native":
        convolve = implementation("native", "sparse", "accumulate_conv")
    return convolve(spikes, weight_now, weight_before, bias, stride)


def accumulate_conv_reference(
    spikes: Tensor, weight_now: Tensor, weight_before: Tensor | None, bias: Tensor | None, stride: int = 1
) -> tuple[Tensor, int]:
    """The same by dense convolutions."""
    if spikes.numel() and spikes.max() > 1:
        raise InputError("spikes hold a byte above 1; 0 or 1 is wanted")
    kernels = [(spikes, weight_now)]
    if weight_before is not None:
        kernels.append((shift(spikes)[0], -weight_before))
    out, additions = spikes.new_zeros((), dtype=torch.float32), 0
    for seen, weight in kernels:
        images = seen.flatten(0, 1).movedim(-1, 1)
        out = out + F.conv2d(images.float(), weight.float(), None, stride, 1)
        taps = weight.new_ones(1, 1, 3, 3, dtype=torch.float64)
        reached = F.conv2d(images.sum(1, keepdim=True).double(), taps, None, stride, 1)
        additions += weight.shape[0] * int(reached.sum())
    out = out.movedim(1, -1).unflatten(0, spikes.shape[:2])
    return (out if bias is None else out + bias.float()).contiguous(), additions
