"""The network's 3×3 convolutions over channels-last images."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.backend import backend
from ripe_mambaspike.ops.winograd import winograd_conv


def convolve(
    x: Tensor, kernel: Tensor, stride: int = 1, bias: Tensor | None = None, winograd: Tensor | None = None
) -> Tensor:
    """A 3×3 kernel over every step: [B, T, H, W, C_in] → [B, T, H', W', C].

    `winograd`: the kernel as `winograd_weights` gives it, used where the C++ operators compute without a gradient.
    """
    if winograd is not None and not torch.is_grad_enabled() and backend(x) == "native":
        return winograd_conv(x.flatten(0, 1), winograd, kernel.shape[0], bias).unflatten(0, x.shape[:2])
    flat = conv_images(x.flatten(0, 1).permute(0, 3, 1, 2), kernel, bias, stride)
    return flat.permute(0, 2, 3, 1).contiguous().unflatten(0, x.shape[:2])


def conv_images(images: Tensor, kernel: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """`F.conv2d` with padding 1: [N, C_in, H, W] → [N, C, H', W'].

    On a CPU a batch of one may use another routine, with other rounding. It is doubled, so that a clip computed step by
    step is bit-identical to the clip computed at once.
    """
    if len(images) > 1 or images.device.type != "cpu" or torch.is_grad_enabled():
        return F.conv2d(images, kernel, bias, stride, 1)
    twice = torch.cat((images, images)).contiguous(memory_format=torch.channels_last)
    return F.conv2d(twice, kernel, bias, stride, 1)[:1]
