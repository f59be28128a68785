"""Randomize all values of a network, so that an identity cannot hold by accident.

At initialization the temporal filters are the identity and most neurons are silent; afterwards all layers fire.
"""

import torch
from torch import Tensor, nn

from ripe_mambaspike.nn.attention import MembraneAttention
from ripe_mambaspike.nn.neurons import CSiLIF, SiLIF
from ripe_mambaspike.nn.norm import BatchNorm, TimeBatchNorm
from ripe_mambaspike.nn.repconv import RepConv


@torch.no_grad()
def randomize(module: nn.Module, seed: int) -> None:
    """Set random statistics, affines, filter coefficients, gains and thresholds, if the module has them."""
    generator = torch.Generator().manual_seed(seed)

    def fill(tensor: Tensor, low: float, high: float) -> None:
        values = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        tensor.copy_(values * (high - low) + low)

    for part in module.modules():
        if isinstance(part, BatchNorm | TimeBatchNorm):
            fill(part.weight, 0.5, 1.5)
            fill(part.bias, -0.5, 0.5)
            fill(part.running_mean, -0.5, 0.5)
            fill(part.running_var, 0.5, 2.0)
        elif isinstance(part, RepConv) and part.coefficient is not None:
            fill(part.coefficient, -1.5, 1.5)
        elif isinstance(part, MembraneAttention):
            fill(part.gain, 0.5, 1.5)
        elif isinstance(part, SiLIF | CSiLIF):
            fill(part.threshold, 0.2, 0.6)
