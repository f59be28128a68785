"""Layers that several networks share."""

from torch import Tensor, nn


class SpikeMatmul(nn.Module):
    """a @ b of spikes, as a module so that its operands can be watched."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b
