"""Weights for tests of stored ones."""

import torch

from ripe_mambaspike.models.stored import Stored


def as_int8(weight):
    """The weight as int8, each row with its own scale."""
    weight = weight.detach()
    scale = weight.abs().amax(tuple(range(1, weight.ndim)), keepdim=True).clamp(min=1e-6) / 127
    return Stored((weight / scale).round().to(torch.int8), scale)
