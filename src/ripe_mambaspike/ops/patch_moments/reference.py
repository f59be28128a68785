"""Moments of 3×3 patches in plain PyTorch, with every patch materialized."""

import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.patch_moments import PatchMomentsInputs
from ripe_mambaspike.ops.shapes import at_least_float32


def patch_moments(i: PatchMomentsInputs) -> tuple[Tensor, Tensor]:
    channels = i.x.shape[-1]
    images = at_least_float32(i.x).permute(0, 1, 4, 2, 3).flatten(0, 1)
    taps = F.unfold(images, 3, padding=1, stride=i.stride).unflatten(1, (channels, 9)).transpose(1, 2).flatten(1, 2)
    patches = taps.transpose(1, 2).flatten(0, 1)  # [all positions, 9C]
    return patches.mean(0), patches.T @ patches / patches.shape[0]
